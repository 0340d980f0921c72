"""VMMs whose process is hard to read, and strangers with their numbers: each gets exactly its verdict."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Self

import pytest

from harness import python
from harness.backends.contract import KNOB, UNSEEN
from harness.sandbox import RAMFS, Sandbox
from harness.sut.program import Program
from harness.sut.protocol import called, mapping
from harness.witness.processes import claim_is_held
from harness.world import World

pytestmark = pytest.mark.spec("card.3", "622.acc.21")

NOTING = """
import os, signal, sys

def note(number, _):
    os.write(1, f"signal {number}".encode())

for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGCONT", "SIGBREAK"):
    if hasattr(signal, name):
        signal.signal(getattr(signal, name), note)
os.write(1, b"ready")
sys.stdin.read()
"""
"""A stranger: it notes every signal that it can, and ends with its standard input."""

NAME = "a) Z 1\n( \udcff) R"
"""A name that a reader of `/proc/PID/stat` trips over in every way."""


@contextmanager
def stranger(world: World) -> Iterator[int]:
    """Run a process that has nothing to do with any sandbox; it must neither end nor hear anything."""
    command = python.write_script(os.path.join(world.root, "out", "stranger.py"), packages=(), body=NOTING)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        world.processes.own(child.pid)
        assert child.stdout is not None
        world.expect("the stranger", expected=b"ready", found=child.stdout.read(5))
        yield child.pid
        world.expect("the stranger", expected=None, found=child.poll())
        world.expect("the stranger's signals", expected=b"", found=child.communicate()[0])


def running(world: World, knobs: dict[str, object] | None = None) -> tuple[Sandbox, int]:
    """Start a sandbox, end its orchestrator, and return the VMM's number."""
    if knobs is not None:
        world.vmm.configure(knobs=knobs)
    box = Sandbox(world, upper=RAMFS)
    first = world.orchestrator()
    box.provision(first)
    box.succeed(first, "start")
    first.kill(world.soon())
    return box, world.processes.one("start").pin.pid


def stopped(world: World, box: Sandbox, program: Program, where: str) -> None:
    """The VM is found, spoken to and stopped, and nothing was signalled."""
    world.expect(f"{where}, reattach", expected="live", found=box.verdict(program))
    world.expect(f"{where}, exec", expected="here\n", found=box.output(program, "/bin/echo", "here"))
    box.succeed(program, "stop")
    world.processes.none(f"{where}, stop", world.soon())
    signals = world.runs.one(where).signals()
    if world.saw("signals to the VMM", signals):
        world.expect(f"{where}, signals", expected=[], found=signals)


@pytest.mark.case("T21")
def test_a_vmm_with_any_name_is_found_again(world: World) -> None:
    world.need(f"{KNOB}process_name")
    box, pid = running(world, {"process_name": NAME})
    with open(f"/proc/{pid}/comm", "rb") as comm:
        world.expect("its name", expected=os.fsencode(NAME) + b"\n", found=comm.read())
    stopped(world, box, world.orchestrator(), "with a name like that")


@pytest.mark.case("T22")
@pytest.mark.parametrize("forced", [False, True], ids=["asked", "forced"])
def test_a_vmm_whose_first_thread_has_ended_lives(world: World, *, forced: bool) -> None:
    """It has no program and no arguments any more and its state is a zombie's, and threads of it serve the guest."""
    world.need(f"{KNOB}leader_exits")
    world.vmm.configure(knobs={"leader_exits": True})
    box, first = Sandbox(world, upper=RAMFS), world.orchestrator()
    box.provision(first)
    box.succeed(first, "start")
    first.kill(world.soon())
    pid = int(str(mapping(mapping(json.loads(box.read("runtime.json")))["process"])["pid"]))
    pin, stat = world.host.pin(pid), world.host.stat(pid)
    assert pin is not None
    world.expect("its first thread", expected="Z", found=stat and stat.state)
    with open(f"/proc/{pid}/cmdline", "rb") as arguments:
        world.expect("its arguments", expected=b"", found=arguments.read())
    program = world.orchestrator()
    world.expect("status", expected="live", found=box.verdict(program, "status"))
    for op in ("start", "deprovision"):
        box.fail(program, op, "AlreadyExists")
    if not forced:
        stopped(world, box, program, "without its first thread")
    else:
        os.unlink(box.path("control.capability"))
        answer = box.succeed(program, "stop", {**box.named(), "timeout": 2.0, "forceWithin": 20.0})
        world.expect("stop", expected="forced", found=answer.result["outcome"])
    world.expect("its end", expected=True, found=pin.has_exited())
    pin.close()


@pytest.mark.case("T04")
@pytest.mark.spec("620.scope3.n", "620.scope3.p", "656.reattach.g")
def test_a_record_whose_number_is_a_strangers_is_cleared_and_the_stranger_left_alone(world: World) -> None:
    box, _ = running(world)
    world.processes.one("start").pin.end()
    world.processes.none("killed", world.soon())
    program = world.orchestrator()
    record = mapping(json.loads(box.read("runtime.json")))
    with stranger(world) as number:
        stat = world.host.stat(number)
        assert stat is not None
        for what, changes in {
            "another boot": {"pid": number, "startTime": stat.start, "boot": "0f1e2d3c-4b5a-4978-8695-a4b3c2d1e0f9"},
            "another start": {"pid": number, "startTime": stat.start + 1},
            "the orchestrator's own number": {"pid": program.pid},
            "the first process of all": {"pid": 1},
        }.items():
            process = {**mapping(record["process"]), **changes}
            process.pop("pidfsInode", None)
            write(box.path("runtime.json"), {**record, "process": process})
            world.expect(f"{what}, status", expected="exited", found=box.verdict(program, "status").partition(":")[0])
            box.succeed(program, "stop")
            box.expect_kept(f"{what}, stop", "runtime.json", there=False)
    box.succeed(program, "start")
    box.succeed(program, "stop")


def write(path: str, record: dict[str, object]) -> None:
    """Write a record as another program might: private, and with white space of its own."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        json.dump(record, file)


class Squatter:
    """Serves a sandbox's endpoint in the place of its VMM: takes what its first caller says, and hangs up."""

    def __init__(self, box: Sandbox) -> None:
        self.said: bytes | None = None
        self._path = box.path("control.sock")
        self._seconds = box.world.soon().remaining()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Self:
        self._listener.bind(self._path)
        self._listener.settimeout(self._seconds)
        self._listener.listen()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        self._listener.close()
        # A start that failed has cleared the endpoint, whoever's it was.
        with suppress(FileNotFoundError):
            os.unlink(self._path)

    def _serve(self) -> None:
        with self._listener.accept()[0] as caller:
            caller.settimeout(self._seconds)
            self.said = caller.recv(4096)


def _require_sockets(world: World) -> None:
    if world.host.serves_pipes:
        pytest.skip("the first instance of a pipe has its name: nobody can take it from its server")


@pytest.mark.parametrize("op", ["exec", "stop"])
def test_a_stranger_in_the_place_of_the_vmm_s_endpoint_hears_nothing(world: World, op: str) -> None:
    """The capability is for the VMM alone: the kernel is asked who serves, before a word is said."""
    _require_sockets(world)
    box, _ = running(world)
    program = world.orchestrator()
    os.rename(box.path("control.sock"), box.path("aside"))
    with Squatter(box) as squatter:
        args = {**box.named(), "argv": ["/bin/true"]} if op == "exec" else box.named()
        box.fail(program, op, "Refused" if op == "exec" else "TimedOut", args)
    world.expect(f"{op}: said to the stranger", expected=b"", found=squatter.said)
    world.processes.one(op)
    os.rename(box.path("aside"), box.path("control.sock"))
    stopped(world, box, program, f"after {op}")


def test_a_start_whose_endpoint_a_stranger_serves_fails_without_a_word_to_it(world: World) -> None:
    _require_sockets(world)
    world.vmm.configure(pauses=["before_bind"])
    box = Sandbox(world, upper=RAMFS)
    program = world.orchestrator()
    box.provision(program)
    running = program.begin("start", box.named())
    world.channel.wait_paused("before_bind", world.soon())
    with Squatter(box) as squatter:
        answer = running.answer(world.soon())
    world.expect("start", expected="LaunchFailed", found=called(answer.code))
    world.expect("start: said to the stranger", expected=b"", found=squatter.said)
    world.processes.none("start", world.soon())
    world.expect("start: what is left of it", expected=False, found="launch.json" in box.names())
    world.vmm.configure()
    box.succeed(program, "start")
    box.succeed(program, "stop")


@pytest.mark.spec("620.scope2.c", "620.scope6.g")
def test_a_descendant_that_keeps_the_log_bars_the_next_start_until_it_ends(world: World) -> None:
    world.need(f"{KNOB}helper_keeps_log")
    box, pid = running(world, {"helper_keeps_log": True})
    program = world.orchestrator()
    box.succeed(program, "stop")
    stat = world.host.stat(pid)
    world.expect("the VMM", expected=None, found=stat and stat.state if stat and stat.state != "Z" else None)
    before = box.names()
    verdict = box.verdict(program, "status")
    world.expect("status", expected="indeterminate", found=verdict.partition(":")[0])
    # Each of them looks at the held claim for a second.
    for op in ("start", "stop", "deprovision") if world.is_full else ("start",):
        box.fail(program, op, "Indeterminate")
        world.expect(f"{op}: what is there", expected=before, found=box.names())
    vm = world.runs.one("start")
    if vm.contacts() is None:
        pytest.skip(f"what a VMM starts is {UNSEEN}")
    path = box.path("openvmm.log")
    log = os.stat(path)
    for holder in world.host.holders(log.st_dev, log.st_ino):
        pin = world.host.pin(holder)
        if pin is not None:
            pin.end()
            pin.close()
    # A process on its way out shows no descriptors, and may have the claim a moment longer.
    held = claim_is_held(world.host, path, world.soon())
    world.expect("the claim once it has ended", expected=False, found=held)
    world.expect("status once it has ended", expected="stopped", found=box.verdict(program, "status"))
    world.vmm.configure()
    box.succeed(program, "start")
    box.succeed(program, "stop")
    box.succeed(program, "deprovision")
