"""System calls as strace tells them: read right, counted as strace counts, and hit where a cell says."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import python
from harness.crash.trace import Trace, Tracer, find, read
from harness.errors import Late, Unavailable
from harness.sut.naming import Namer
from tests.harness.stubs import SOON

NEEDS_STRACE = pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace (package strace)")

NAMER = Namer("/w/s", "box")

TEXT = """\
7 openat(3</w/s/box>, "config.json", O_RDONLY|O_CLOEXEC) = 4</w/s/box/config.json>
7 close(4</w/s/box/config.json>) = 0
7 write(1<pipe:[55]>, ""..., 12) = 12
7 openat(3</w/s/box>, ".launch.json.0123456789abcdef0123456789abcdef.tmp", O_WRONLY|O_CREAT|O_EXCL, 0600) = 4</w/s/box/.launch.json.0123456789abcdef0123456789abcdef.tmp>
7 write(4</w/s/box/.launch.json.0123456789abcdef0123456789abcdef.tmp>, ""..., 188) = -1 ENOSPC (No space left on device) (INJECTED)
7 write(4</w/s/box/.launch.json.0123456789abcdef0123456789abcdef.tmp>, ""..., 188) = 188
7 close(4</w/s/box/.launch.json.0123456789abcdef0123456789abcdef.tmp>) = 0
7 renameat(3</w/s/box>, ".launch.json.0123456789abcdef0123456789abcdef.tmp", 3</w/s/box>, "launch.json") = 0
7 mkdir("/w/s/box", 0700) = -1 EEXIST (File exists)
7 unlinkat(AT_FDCWD</w>, "/w/other/a \\"b", 0) = 0
7 fcntl(5</w/images/box.ext4>, F_OFD_SETLK, {l_type=F_WRLCK, l_start=1, l_len=1}) = 0
7 fcntl(5</w/images/box.ext4>, F_GETFD) = 0x1 (flags FD_CLOEXEC)
7 fcntl(5</w/images/box.ext4>, F_DUPFD_CLOEXEC, 0) = 6</w/images/box.ext4>
7 connect(6<socket:[9]>, {sa_family=AF_UNIX, sun_path="/w/s/box/control.sock"}, 46) = 0
7 pidfd_send_signal(8<anon_inode:[pidfd]>, SIGKILL, NULL, 0) = 0
7 waitid(P_PIDFD, 8<anon_inode:[pidfd]>, {si_signo=SIGCHLD}, WNOHANG|WEXITED, NULL) = 0
7 vfork( <unfinished ...>
8 close(4</w/s/box>) = -1 EIO (Input/output error) (INJECTED)
8 dup2(4</w/s/box/openvmm.log>, 1<pipe:[55]>) = 1</w/s/box/openvmm.log>
7 <... vfork resumed>) = 8
7 close(9<pipe:[66]>) = 0
7 fsync(4</w/s/box/gone (deleted)> <unfinished ...>
7 +++ killed by SIGKILL +++
8 +++ exited with 0 +++
"""  # noqa: E501 - as strace writes it

CALLS = """\
openat:config.json 1 1 EIO,EMFILE -
close:config.json 1 1 - changes
openat:.launch.json.ID.tmp 1 2 ENOSPC,EIO,EINTR,EMFILE changes
write:.launch.json.ID.tmp 1 2 ENOSPC,EIO,EINTR changes
write:.launch.json.ID.tmp 2 3 ENOSPC,EIO,EINTR changes
close:.launch.json.ID.tmp 1 2 EIO,EINTR changes
renameat:.launch.json.ID.tmp,launch.json 1 1 ENOSPC,EIO changes
mkdir:. 1 1 ENOSPC,EIO changes
unlinkat:~/other/a___b 1 1 EIO changes
fcntl:~/images/box.ext4 1 1 EIO changes
fcntl:~/images/box.ext4 3 3 EMFILE -
connect:control.sock 1 1 EINTR changes
pidfd_send_signal:pidfd,SIGKILL 1 1 - changes
waitid:pidfd 1 1 EINTR changes
vfork: 1 1 - changes
close:pipe 1 3 - changes
fsync:gone 1 1 ENOSPC,EIO,EINTR changes
"""

TARGET = """
import os
print("up", flush=True)
sys.stdin.readline()
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT, 0o600)
for secret in (b"first secret", b"second secret"):
    try:
        os.write(fd, secret)
    except OSError as error:
        print(error.errno, flush=True)
os.close(fd)
"""


THREADS = """\
7 mkdir("/w/s/box", 0700) = 0
7 clone3({flags=CLONE_VM|CLONE_FS|CLONE_THREAD|CLONE_SETTID, exit_signal=0}, 88) = 9
8 clone3({flags=CLONE_VM|CLONE_FS|CLONE_THREAD|CLONE_SETTID, exit_signal=0}, 88) = 10
10 +++ killed by SIGKILL +++
9 +++ killed by SIGKILL +++
8 +++ killed by SIGKILL +++
7 +++ killed by SIGKILL +++
"""


def test_a_program_of_several_threads_is_killed_as_one() -> None:
    assert read(THREADS, 7, NAMER, [], threads=[7, 8]).killed == [7]
    assert read(THREADS, 7, NAMER, []).killed == [7, 8, 10]


def test_what_a_run_time_does_after_its_answer_is_no_part_of_the_operation() -> None:
    text = THREADS.partition("7 clone3")[0] + '7 write(1<pipe:[55]>, ""..., 12) = 12\n7 close(5<pipe:[66]>) = 0\n'
    trace = read(text, 7, NAMER, ["pipe:[55]"])
    assert [call.point for call in trace.calls] == ["mkdir:.", "close:pipe"]
    assert [call.point for call in trace.of_operation] == ["mkdir:."]
    assert read(text, 7, NAMER, []).of_operation == []


def test_a_trace_is_read_into_calls_with_their_own_counts() -> None:
    trace = read(TEXT, 7, Namer("/w/s", "box"), ["pipe:[55]"])
    found = [
        f"{call.point} {call.hit} {call.count} {','.join(call.errors) or '-'} {'changes' if call.changes else '-'}"
        for call in trace.calls
    ]
    assert found == CALLS.splitlines()
    assert trace.injected == ["write:.launch.json.ID.tmp"]
    assert (trace.last, trace.killed, trace.elsewhere) == ("fsync:gone", [7], [8])


@pytest.fixture
def target(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    script = python.write_script(str(tmp_path / "target.py"), packages=(), body=TARGET)
    child = subprocess.Popen([*script, str(tmp_path / "written")], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    # Whoever attaches in the midst of its exec may be let go at that.
    assert child.stdout.readline() == b"up\n"
    yield child
    child.kill()
    child.communicate()


def traced(child: subprocess.Popen[bytes], tmp_path: Path, injection: str | None) -> tuple[Trace, str]:
    tracer = Tracer(child.pid, str(tmp_path / "trace"), injection=injection)
    assert child.stdin is not None
    child.stdin.write(b"go\n")
    child.stdin.flush()
    text = tracer.close(SOON(60))
    return read(text, child.pid, Namer(str(tmp_path), "box"), []), text


@NEEDS_STRACE
def test_nothing_of_what_is_written_is_in_a_trace(target: subprocess.Popen[bytes], tmp_path: Path) -> None:
    trace, text = traced(target, tmp_path, None)
    assert [call.point for call in trace.calls if call.name == "write"] == ["write:../written"] * 2
    assert "secret" not in text


@NEEDS_STRACE
def test_a_kill_hits_the_call_and_keeps_it_from_happening(target: subprocess.Popen[bytes], tmp_path: Path) -> None:
    trace, _ = traced(target, tmp_path, "write:signal=SIGKILL:when=2")
    assert trace.killed == [target.pid]
    assert (trace.last, trace.calls[-1].hit) == ("write:../written", 2)
    assert (tmp_path / "written").read_bytes() == b"first secret"


@NEEDS_STRACE
def test_an_error_hits_one_call(target: subprocess.Popen[bytes], tmp_path: Path) -> None:
    trace, _ = traced(target, tmp_path, "write:error=ENOSPC:when=1")
    assert trace.injected == ["write:../written"]
    assert target.communicate()[0] == b"28\n"
    assert (tmp_path / "written").read_bytes() == b"second secret"


@NEEDS_STRACE
def test_a_process_that_is_gone_can_not_be_traced(tmp_path: Path) -> None:
    child = subprocess.Popen([python.interpreter(), "-I", "-S", "-c", ""])
    child.wait()
    with pytest.raises(Unavailable, match=r"the right to attach: .*No such process"):
        Tracer(child.pid, str(tmp_path / "trace"))


@NEEDS_STRACE
def test_a_process_that_goes_on_is_let_go(target: subprocess.Popen[bytes], tmp_path: Path) -> None:
    tracer = Tracer(target.pid, str(tmp_path / "trace"))
    with pytest.raises(Late, match=r"the orchestrator's within 0.1 s, found strace goes on"):
        tracer.close(SOON(0.1))
    status = Path(f"/proc/{target.pid}/status").read_text()
    assert "TracerPid:\t0\n" in status


def test_without_strace_there_is_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(Unavailable, match=r"missing: strace \(package strace\)"):
        find()
