"""A number that another process got: forced, in a PID namespace of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

FORCE = """
import os, subprocess, sys
import msgspec
from nvx_ref.deadline import Deadline
from nvx_ref.platform import process, spawn
from nvx_ref.platform.linux import pidfd
from nvx_ref.process import ProcessRef

null = os.open("/dev/null", os.O_RDWR)

def start():
    return spawn.spawn(["sleep", "100"], stdin=null, output=null, allowed=[], cwd="/")

def reuse():
    first = start()
    recorded = first.identity()
    held = ProcessRef.from_child(first)
    assert first.terminate(Deadline.after(10))
    with open("/proc/sys/kernel/ns_last_pid", "w") as last:
        last.write(str(recorded.pid - 1))
    second = start()
    assert second.pid == recorded.pid, "the number wasn't reused"
    return held, recorded, second
"""


@pytest.mark.case("T01")
@pytest.mark.case("T02")
@pytest.mark.spec("620.acc.4")
def test_a_reused_number_is_exited_and_its_new_owner_untouched(isolated: Callable[..., str]) -> None:
    code = (
        FORCE
        + """
same_tick = turns = 0
bound = Deadline.after(60)
# A slow machine needs more turns until two starts meet in one tick.
while turns < 60 or not (same_tick or bound.expired()):
    turns += 1
    held, recorded, second = reuse()
    stranger = second.identity()
    if recorded.pidfs_inode is None and stranger.start_time == recorded.start_time:
        print("SKIP"); break
    same_tick += stranger.start_time == recorded.start_time
    assert ProcessRef.open(recorded) is None
    # A reference from before the reuse still means the first process: acting on it reaches nobody.
    assert held.has_exited() and held.exit_status() == -9
    held.terminate()
    held.close()
    with second.pin() as pin:
        # A signal takes a moment to end anybody: the first one is given it.
        assert not pin.has_exited() and (turns > 1 or not pin.wait(Deadline.after(0.3)))
        assert pin.identity() == stranger
    assert second.terminate(Deadline.after(10))
print(same_tick)
"""
    )
    answer = isolated(code, flags="-m -p -f --mount-proc").split()
    if answer[0] == "SKIP":
        pytest.skip("this kernel has no pidfs: an equal tick is the documented residue")
    assert int(answer[0]) > 0, "no reuse had the same start tick, so the run shows nothing about the unique number"


@pytest.mark.case("T02")
def test_on_an_old_kernel_an_equal_tick_is_the_residue_and_any_other_is_exited(isolated: Callable[..., str]) -> None:
    code = (
        FORCE
        + """
pidfd._probed["unique"] = False
answers = set()
for _ in range(30):
    held, recorded, second = reuse()
    held.close()
    assert recorded.pidfs_inode is None
    found = ProcessRef.open(recorded)
    answers.add((second.identity().start_time == recorded.start_time, found is not None))
    if found: found.close()
    assert second.terminate(Deadline.after(10))
assert answers <= {(True, True), (False, False)}, answers
print("ok")
"""
    )
    assert isolated(code, flags="-m -p -f --mount-proc").split() == ["ok"]


@pytest.mark.case("T01")
def test_a_dead_servers_reused_number_is_not_its_peer(isolated: Callable[..., str], short_root: str) -> None:
    """Without SO_PEERPIDFD: the server ends, a stranger gets its number, another process still serves the socket."""
    code = (
        FORCE
        + """
import signal, socket, time
from nvx_ref.platform import endpoint
from nvx_ref.platform.contract import ProcessGone
path = sys.argv[1]
server = subprocess.Popen([sys.executable, "-I", "-c", f'''
import os, signal, socket
s = socket.socket(socket.AF_UNIX); s.bind({path!r}); s.listen()
if os.fork(): print("up", flush=True); os._exit(0)
signal.pause()
'''], stdout=subprocess.PIPE)
server.stdout.readline()
connection = endpoint.connect(path, Deadline.after(10), alive=lambda: True)
server.wait()
tick = 1 / os.sysconf("SC_CLK_TCK")
while time.clock_gettime(time.CLOCK_BOOTTIME) < connection._before + 2 * tick:
    pass
with open("/proc/sys/kernel/ns_last_pid", "w") as last:
    last.write(str(server.pid - 1))
stranger = start()
assert stranger.pid == server.pid
for attempt in (connection.peer, connection._peer_by_number):
    try:
        attempt()
    except ProcessGone:
        print("gone")
with stranger.pin() as pin:
    assert not pin.has_exited()
"""
    )
    answer = isolated(code, f"{short_root}/s", flags="-m -p -f --mount-proc --kill-child")
    assert answer.split() == ["gone", "gone"]
