"""Spawns: exactly what is inherited, what is refused first, what a failure leaves."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from nvx_ref.deadline import Deadline
from nvx_ref.errors import LaunchFailed, Refused
from nvx_ref.platform import files, process, spawn
from nvx_ref.process import ProcessRef

pytestmark = pytest.mark.usefixtures("no_leak")

Start = Callable[..., spawn.Child]


@pytest.fixture
def start(sandbox: files.Directory, soon: Deadline) -> Callable[..., spawn.Child]:
    """Spawn a command with `/dev/null` as its input and the sandbox' log as its output; it ends with the test."""
    started: list[spawn.Child] = []

    def run(*argv: str, allowed: tuple[int, ...] = (), cwd: str | None = None) -> spawn.Child:
        null, log = os.open("/dev/null", os.O_RDONLY), sandbox.open_log("log")
        try:
            child = spawn.spawn(argv, stdin=null, output=log, allowed=allowed, cwd=cwd or sandbox.path)
        finally:
            os.close(null)
            os.close(log)
        started.append(child)
        return child

    yield run
    for child in started:
        assert child.terminate(soon)


def python_code(code: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-c", code)


def ended(child: spawn.Child, soon: Deadline) -> int | None:
    with child.pin() as pin:
        assert pin.wait(soon)
        return pin.exit_status()


@pytest.mark.case("T32")
@pytest.mark.spec("656.spawn.e")
@pytest.mark.parametrize("kind", ["inheritable", "closed", "0", "1", "2", "negative", "huge"])
def test_a_wrong_descriptor_is_refused_before_the_spawn(
    start: Start, sandbox: files.Directory, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("spawned"))
    reader, writer = os.pipe()
    os.set_inheritable(reader, kind == "inheritable")
    number = {"inheritable": reader, "closed": 987, "negative": -1, "huge": 2**40}.get(kind)
    with pytest.raises(Refused) as caught:
        start("true", allowed=(writer, int(kind) if number is None else number))
    assert str(int(kind) if number is None else number) in (caught.value.subject or "")
    assert (caught.value.detail == "standard-stream") == (number is None)
    os.close(reader)
    os.close(writer)
    assert sandbox.read("log", 100) == b""


def test_a_wrong_stream_is_refused_before_the_spawn(sandbox: files.Directory) -> None:
    null = os.open("/dev/null", os.O_RDWR)
    inheritable = os.dup(null)
    os.set_inheritable(inheritable, True)
    for stdin, output in ((987, null), (null, 987), (inheritable, null), (null, inheritable)):
        with pytest.raises(Refused):
            spawn.spawn(["true"], stdin=stdin, output=output, allowed=[], cwd=sandbox.path)
    os.close(null)
    os.close(inheritable)


@pytest.mark.case("T32")
def test_a_duplicate_is_passed_once_under_its_own_number(
    start: Start, sandbox: files.Directory, soon: Deadline
) -> None:
    reader, writer = os.pipe()
    high = os.dup(reader)
    os.dup2(high, 57, inheritable=False)
    child = start(
        *python_code("import os; print([n for n in range(99) if os.path.exists(f'/proc/self/fd/{n}')])"),
        allowed=(57, 57),
    )
    for fd in (reader, writer, high, 57):
        os.close(fd)
    assert ended(child, soon) == 0
    assert sandbox.read("log", 1000) == b"[0, 1, 2, 57]\n"


@pytest.mark.spec("656.spawn.b")
def test_an_inherited_descriptor_is_opened_by_its_path(start: Start, sandbox: files.Directory, soon: Deadline) -> None:
    sandbox.create_new("image", b"checked")
    fd = files.open_image(f"{sandbox.path}/image")
    sandbox.replace("image", b"swapped", durable=False)
    child = start("cat", files.proc_path(fd), allowed=(fd,))
    os.close(fd)
    assert ended(child, soon) == 0
    assert sandbox.read("log", 100) == b"checked"


@pytest.mark.spec("656.spawn.a")
def test_output_and_errors_go_to_the_log(start: Start, sandbox: files.Directory, soon: Deadline) -> None:
    child = start("sh", "-c", "echo out; echo err >&2; pwd")
    assert ended(child, soon) == 0
    assert sandbox.read("log", 1000) == b"out\nerr\n" + os.fsencode(sandbox.path) + b"\n"


def test_a_caller_without_standard_streams_can_spawn(
    sandbox: files.Directory, python: Callable[..., subprocess.Popen[bytes]], soon: Deadline
) -> None:
    """A daemon may have closed them: then the capability and the log have their numbers, in any order."""
    code = f"""
import os
from nvx_ref.deadline import Deadline
from nvx_ref.platform import files, spawn
for number in (0, 1, 2):
    os.close(number)
directory = files.open_private({sandbox.path!r})
log = directory.open_log("log")
pipe = spawn.pipe_with(b"capability")
extra = spawn.pipe_with(b"extra")
report = "cat; echo; cat /proc/self/fd/%d; echo; ls /proc/self/fd | tr '\\n' ' '" % extra
child = spawn.spawn(["sh", "-c", report], stdin=pipe, output=log, allowed=[extra], cwd="/")
with child.pin() as pin:
    os._exit(0 if pin.wait(Deadline.after(30)) and pin.exit_status() == 0 else 1)
"""
    assert python(code, ready=False).wait(30) == 0
    lines = (sandbox.read("log", 1000) or b"").split(b"\n")
    assert lines[:2] == [b"capability", b"extra"]
    assert len(lines[2].split()) == 5  # 0, 1, 2, the pipe, and the directory that `ls` reads
    assert not soon.expired()


@pytest.mark.case("T38")
@pytest.mark.spec("656.spawn.a")
def test_the_capability_arrives_whole_and_ends_and_nobody_else_holds_it(
    sandbox: files.Directory, soon: Deadline
) -> None:
    capability = bytes(range(1, 33))
    reader = spawn.pipe_with(capability)
    inode = os.fstat(reader).st_ino
    log = sandbox.open_log("log")
    code = "import os, time; os.write(1, os.read(0, 99) + b'|' + os.read(0, 99) + b'|'); time.sleep(100)"
    child = spawn.spawn(python_code(code), stdin=reader, output=log, allowed=[], cwd=sandbox.path)
    os.close(reader)
    os.close(log)
    while sandbox.read("log", 100) != capability + b"||":
        with child.pin() as pin:
            assert not pin.has_exited()
    holders = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            numbers = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for number in numbers:
            try:
                found = os.stat(f"/proc/{pid}/fd/{number}")
            except OSError:
                continue
            if stat.S_ISFIFO(found.st_mode) and found.st_ino == inode:
                holders.append((int(pid), int(number)))
    assert holders == [(child.pid, 0)]
    assert child.terminate(soon)


def test_a_pipe_holds_what_it_is_given_and_no_more() -> None:
    for data in (b"", b"x" * 4096):
        reader = spawn.pipe_with(data)
        assert os.read(reader, 9999) == data
        assert os.read(reader, 1) == b""
        os.close(reader)
    with pytest.raises(Refused):
        spawn.pipe_with(b"x" * 4097)


@pytest.mark.parametrize(
    "how", ["missing", "plain", "directory", "no interpreter", "not executable", "no cwd", "not in PATH"]
)
def test_a_program_that_cant_be_started_leaves_nothing(start: Start, sandbox: files.Directory, how: str) -> None:
    path = f"{sandbox.path}/program"
    if how == "directory":
        os.mkdir(path)
    elif how != "missing":
        Path(path).write_text("#!/no/such/interpreter\n" if how == "no interpreter" else "text\n")
        os.chmod(path, 0o600 if how == "not executable" else 0o700)
    argv0 = {"no cwd": "true", "not in PATH": "no-such-program-anywhere"}.get(how, path)
    with pytest.raises(LaunchFailed) as caught:
        start(argv0, cwd="/no/such/directory" if how == "no cwd" else None)
    assert caught.value.subject == ("/no/such/directory" if how == "no cwd" else argv0)
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize("argv", [(), ("true", "a\0b"), ("true", "\ud800"), ("a\0",)])
def test_a_command_that_cant_be_passed_is_refused(start: Start, argv: tuple[str, ...]) -> None:
    with pytest.raises(Refused):
        start(*argv)


def test_an_empty_program_is_refused(start: Start) -> None:
    with pytest.raises(LaunchFailed):
        start("")


@pytest.mark.parametrize("how", ["relative", "PATH", "relative PATH"])
def test_a_program_is_found_from_the_callers_directory(
    start: Start, sandbox: files.Directory, short_root: str, monkeypatch: pytest.MonkeyPatch, soon: Deadline, how: str
) -> None:
    os.mkdir(f"{short_root}/bin")
    program = Path(f"{short_root}/bin/program")
    program.write_text("#!/bin/sh\necho $0\n")
    program.chmod(0o700)
    monkeypatch.chdir(short_root)
    if how != "relative":
        entry = "bin" if how == "relative PATH" else f"{short_root}/bin"
        monkeypatch.setenv("PATH", f"{entry}:{os.environ['PATH']}")
    child = start("bin/program" if how == "relative" else "program")
    assert ended(child, soon) == 0
    assert sandbox.read("log", 1000) == os.fsencode(f"{short_root}/bin/program\n")


def test_a_linked_program_is_started_under_its_link(start: Start, sandbox: files.Directory, soon: Deadline) -> None:
    """A virtual environment's interpreter is a link, and finds its packages by where the link is."""
    os.symlink("/bin/sh", f"{sandbox.path}/link")
    child = start(f"{sandbox.path}/link", "-c", "echo $0; tr '\\0' ' ' < /proc/$$/cmdline")
    assert ended(child, soon) == 0
    assert (sandbox.read("log", 1000) or b"").startswith(os.fsencode(sandbox.path) + b"/link\n")


@pytest.mark.spec("620.scope3.a")
def test_a_child_has_a_session_of_its_own(start: Start) -> None:
    child = start("sleep", "100")
    assert os.getsid(child.pid) == child.pid != os.getsid(0)


@pytest.mark.case("T36")
@pytest.mark.parametrize("end", ["exit", "kill", "hangup", "interrupt"])
def test_a_child_outlives_its_parent(python: Callable[..., subprocess.Popen[bytes]], soon: Deadline, end: str) -> None:
    code = """
import os, signal, sys, msgspec
from nvx_ref.platform import spawn
for number in (signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_DFL)  # ignored where the tests run in the background
null = os.open("/dev/null", os.O_RDWR)
child = spawn.spawn(["sleep", "100"], stdin=null, output=null, allowed=[], cwd="/")
print(msgspec.json.encode(child.identity()).decode(), flush=True)
sys.stdin.read(1)
"""
    parent = python(code, ready=False, start_new_session=True)
    assert parent.stdout is not None
    recorded = msgspec.json.decode(parent.stdout.readline(), type=process.ProcessIdentity)
    if end == "exit":
        parent.communicate(b"x")
    else:
        number = {"kill": signal.SIGKILL, "hangup": signal.SIGHUP, "interrupt": signal.SIGINT}[end]
        os.killpg(parent.pid, number)  # noqa: TID251 - the test's own child, not reaped yet
        parent.wait()
    ref = ProcessRef.open(recorded)
    assert ref is not None
    with ref:
        ref.terminate()
        assert ref.wait(soon)


def test_terminate_ends_the_child_and_keeps_its_status(start: Start, soon: Deadline) -> None:
    child = start("sleep", "100")
    assert child.terminate(soon)
    assert child.terminate(soon)
    assert ended(child, soon) == -signal.SIGKILL


def test_a_child_that_wont_end_by_the_deadline_says_so(
    start: Start, monkeypatch: pytest.MonkeyPatch, soon: Deadline
) -> None:
    child = start("sleep", "100")
    with monkeypatch.context() as patch:
        patch.setattr(process.Pin, "terminate", lambda _: None)
        assert not child.terminate(Deadline.after(0.02))
    assert child.terminate(soon)
