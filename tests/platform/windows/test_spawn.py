"""Spawns with a list of handles: exactly those, for the moment of the creation, and whatever job this process is in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import wine

wine.only_windows()

import msvcrt

import jobs
from nvx_ref.deadline import Deadline
from nvx_ref.errors import LaunchFailed, Refused
from nvx_ref.platform import files, process, spawn
from nvx_ref.platform.windows import commandline, handles, inheritance, native
from sandboxes import SUPPORT
from system import PYTHON, environment

REPORT = """
import ctypes, json, os, sys
from nvx_ref.platform.windows import handles
def of(value):
    try:
        found = handles.identify(value)
    except OSError:
        return None
    return [found.volume, found.file]
data = sys.stdin.buffer.read()
values = [int(word) for word in sys.argv[1].split(",") if word]
print(json.dumps({"data": len(data), "argv": sys.argv[2:], "files": [of(v) for v in values], "cwd": os.getcwd(),
    "console": ctypes.windll.kernel32.GetConsoleWindow()}), flush=True)
"""


def soon() -> Deadline:
    return Deadline.after(120)


class Launcher:
    """Spawns children that report what they have."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.number = 0

    def file(self, name: str) -> int:
        return os.open(self.root / name, os.O_RDWR | os.O_CREAT | os.O_NOINHERIT)

    def run(self, looked: list[int], allowed: list[int], *words: str) -> dict[str, object]:
        """Spawn a child that looks at handle values; returns its report."""
        self.number += 1
        name = f"out-{threading.get_ident()}-{self.number}"
        stdin, output = spawn.pipe_with(b"x" * 32), self.file(name)
        try:
            argv = [sys.executable, "-c", REPORT, ",".join(map(str, looked)), *words]
            child = spawn.spawn(argv, stdin=stdin, output=output, allowed=allowed, cwd=str(self.root))
        finally:
            os.close(stdin)
            os.close(output)
        with child.pin() as pin:
            assert pin.wait(soon())
            assert pin.exit_status() == 0, (self.root / name).read_text()
        child.close()
        return dict(json.loads((self.root / name).read_text()))


@pytest.fixture
def launcher(root: Path) -> Launcher:
    return Launcher(root)


def object_of(fd: int) -> list[str]:
    found = files.file_id(fd)
    return [found.volume, found.file]


@pytest.mark.spec("620.scope3.c", "620.acc.7", "656.spawn.g")
@pytest.mark.spec("656.spawn.f")
def test_the_child_gets_the_allowed_handles_and_no_other(launcher: Launcher) -> None:
    allowed, kept = launcher.file("allowed"), launcher.file("kept")
    decoy = launcher.file("decoy")
    os.set_inheritable(decoy, True)
    values = [msvcrt.get_osfhandle(fd) for fd in (allowed, kept, decoy)]
    try:
        said = launcher.run(values, [allowed, allowed], 'a "b" \\', "", "c\\\\ d\\")
        found = said["files"]
        assert isinstance(found, list)
        assert found[0] == object_of(allowed)
        assert found[1] != object_of(kept)
        assert found[2] != object_of(decoy)
        assert said["argv"] == ['a "b" \\', "", "c\\\\ d\\"]
        assert said["data"] == 32
        assert not said["console"]
        assert os.path.samefile(str(said["cwd"]), launcher.root)
        assert not inheritance.is_inheritable(values[0])
        assert inheritance.is_inheritable(values[2])
    finally:
        for fd in (allowed, kept, decoy):
            os.close(fd)


@pytest.mark.spec("656.spawn.h")
@pytest.mark.case("T34")
def test_concurrent_spawns_that_allow_the_same_handle_all_pass_it_on(launcher: Launcher) -> None:
    shared = launcher.file("shared")
    value = msvcrt.get_osfhandle(shared)
    wrong: list[object] = []

    def work() -> None:
        for _ in range(2):
            said = launcher.run([value], [shared])
            if said["files"] != [object_of(shared)]:
                wrong.append(said)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert wrong == []
    assert not inheritance.is_inheritable(value)
    os.close(shared)


@pytest.mark.spec("656.spawn.h")
@pytest.mark.case("T34")
def test_a_spawn_waits_until_another_has_taken_back_what_it_lent(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = launcher.file("shared")
    value = msvcrt.get_osfhandle(shared)
    create, entered, go = native.create_process, threading.Event(), threading.Event()
    told: list[object] = []

    def held(*arguments: object) -> object:
        entered.set()
        assert go.wait(300)
        return create(*arguments)

    monkeypatch.setattr(native, "create_process", held)
    threads = [threading.Thread(target=lambda: told.append(launcher.run([value], [shared])["files"])) for _ in "12"]
    threads[0].start()
    assert entered.wait(60)
    assert inheritance.is_inheritable(value)
    threads[1].start()
    # Lent is what the first one has made it: whoever looked at it now would take it for the caller's own state.
    threads[1].join(0.5)
    waits = threads[1].is_alive()
    go.set()
    for thread in threads:
        thread.join(300)
    assert waits
    assert told == [[object_of(shared)]] * 2
    assert not inheritance.is_inheritable(value)
    os.close(shared)


@pytest.mark.spec("656.spawn.j")
@pytest.mark.case("T34")
def test_a_plain_spawn_in_that_moment_inherits_the_handle_too(launcher: Launcher) -> None:
    """The documented gap, asserted: a creation without a list of handles takes whatever is inheritable."""
    lent = launcher.file("lent")
    value = msvcrt.get_osfhandle(lent)
    code = f"import sys; sys.argv[1:] = ['{value}']; sys.stdin = open('NUL')\n" + REPORT.replace(
        "sys.stdin.buffer.read()", "b''"
    )
    found: list[object] = []
    for during in (True, False):
        if during:
            with inheritance.turn, inheritance.lent([value]):
                out = subprocess.run([sys.executable, "-c", code], close_fds=False, capture_output=True, check=True)
        else:
            out = subprocess.run([sys.executable, "-c", code], close_fds=False, capture_output=True, check=True)
        found.append(json.loads(out.stdout)["files"][0] == object_of(lent))
    assert found == [True, False]
    os.close(lent)


@pytest.fixture
def streams(launcher: Launcher) -> Iterator[tuple[int, int]]:
    made = spawn.pipe_with(b""), launcher.file("out")
    yield made
    for fd in made:
        os.close(fd)


def refused(streams: tuple[int, int], allowed: list[int], argv: list[str] | None = None) -> Refused:
    with pytest.raises(Refused) as told:
        spawn.spawn(argv or [sys.executable], stdin=streams[0], output=streams[1], allowed=allowed, cwd=os.getcwd())
    return told.value


def test_a_standard_stream_an_inheritable_and_a_closed_descriptor_are_refused(
    launcher: Launcher, streams: tuple[int, int]
) -> None:
    fd = launcher.file("open")
    os.set_inheritable(fd, True)
    assert refused(streams, [1]).detail == "standard-stream"
    assert refused(streams, [fd]).detail == "inheritable-descriptor"
    os.close(fd)
    assert refused(streams, [fd]).detail == "closed-descriptor"
    assert refused(streams, [-1]).detail == "closed-descriptor"


def test_a_command_line_over_the_limit_is_refused_by_its_length(streams: tuple[int, int]) -> None:
    program = "p"
    longest = "x" * (commandline.LONGEST - len(program) - 1)
    assert len(commandline.join([program, longest])) == commandline.LONGEST
    told = refused(streams, [], [program, longest + "x"])
    assert told.detail == "too-long"
    assert str(commandline.LONGEST + 1) in told.reason
    # Units, not characters: this one has two.
    assert refused(streams, [], [program, longest[:-1] + "\U0001f600"]).detail == "too-long"


@pytest.mark.spec("656.spawn.g")
def test_a_program_that_isn_t_there_leaves_nothing_inheritable(streams: tuple[int, int]) -> None:
    with pytest.raises(LaunchFailed) as told:
        spawn.spawn(["nvx-no-such-program"], stdin=streams[0], output=streams[1], allowed=[], cwd=os.getcwd())
    assert told.value.subject == "nvx-no-such-program"
    with pytest.raises(LaunchFailed):
        spawn.spawn(["./nvx-none.exe"], stdin=streams[0], output=streams[1], allowed=[], cwd=os.getcwd())
    assert not inheritance.is_inheritable(msvcrt.get_osfhandle(streams[0]))


def test_a_child_is_verified_and_ended_through_the_handle_of_its_creation(
    launcher: Launcher, streams: tuple[int, int]
) -> None:
    child = spawn.spawn(
        [sys.executable, "-c", "print('up', flush=True); import time; time.sleep(600)"],
        stdin=streams[0],
        output=streams[1],
        allowed=[],
        cwd=str(launcher.root),
    )
    # Wine tells a process its parameters only while that starts.
    until = soon()
    while b"up" not in (launcher.root / "out").read_bytes():
        assert until.pause()
    with process.Pin.open(child.pid) as pin:
        assert pin.identity() == child.identity()
        other = launcher.file("other")
        # Both descriptors of the test name the log's own object, and another file is another one.
        assert pin.holds_output(files.file_id(streams[1]))
        assert not pin.holds_output(files.file_id(other))
        os.close(other)
        assert child.terminate(soon())
        assert pin.has_exited()
        assert child.terminate(soon())
    child.close()


ORCHESTRATOR = """
import os, sys
from nvx_ref.errors import Refused
from nvx_ref.platform import spawn
sys.stdin.readline()
out = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_NOINHERIT)
try:
    child = spawn.spawn([sys.executable, "-c", "import time; time.sleep(600)"], stdin=spawn.pipe_with(b""), output=out,
        allowed=[], cwd=os.getcwd(), breakaway=sys.argv[2] == "breakaway")
    print(child.pid, flush=True)
except Refused as error:
    print(error.detail, flush=True)
sys.stdin.read()
"""


@pytest.mark.spec("620.acc.7", "656.spawn.i", "656.tests.h")
@pytest.mark.case("T35")
@pytest.mark.parametrize(
    ("allowed", "asked", "survives"),
    [(True, "breakaway", True), (True, "stay", False), (False, "stay", False), (False, "breakaway", None)],
)
def test_a_vmm_survives_its_orchestrators_job_only_by_leaving_it(
    python, root: Path, *, allowed: bool, asked: str, survives: bool | None
) -> None:
    child = python(ORCHESTRATOR, str(root / "log"), asked, ready=False)
    with jobs.Job(breakaway=allowed) as job:
        job.add(child.pid)
        child.stdin.write(b"go\n")
        child.stdin.flush()
        said = child.stdout.readline().decode().strip()
        if survives is None:
            assert said == "breakaway"
            return
        pin = process.Pin.open(int(said))
    with pin:
        # The job is closed: it ends whatever is in it.
        with process.Pin.open(child.pid) as orchestrator:
            assert orchestrator.wait(soon())
        if survives:
            assert not pin.wait(Deadline.after(0.3))
            pin.terminate()
        assert pin.wait(soon())


CONSOLE = """
import ctypes, sys
kernel32, user32 = ctypes.WinDLL("kernel32"), ctypes.WinDLL("user32")
kernel32.FreeConsole()
assert kernel32.AttachConsole(int(sys.argv[1]))
kernel32.SetConsoleCtrlHandler(None, True)
if sys.argv[2] == "break":
    assert kernel32.GenerateConsoleCtrlEvent(1, int(sys.argv[1]))
else:
    window, kind = ctypes.c_void_p(kernel32.GetConsoleWindow()), ctypes.create_unicode_buffer(64)
    user32.GetClassNameW(window, kind, 64)
    if kind.value != "ConsoleWindowClass":
        sys.exit(77)
    kernel32.FreeConsole()
    assert user32.PostMessageW(window, 0x10, 0, 0)
"""
"""Does to another process's console what a user does: Ctrl-Break, or its window is closed.

It ends with 77 where the window is a terminal's placeholder, which takes no message.
"""


@pytest.mark.case("T37")
@pytest.mark.parametrize("how", ["break", "close"])
@wine.differs("a console without a terminal has no window and passes nothing on")
def test_a_vmm_hears_nothing_of_its_orchestrators_console(root: Path, how: str) -> None:
    flags = subprocess.CREATE_NEW_CONSOLE | subprocess.CREATE_NEW_PROCESS_GROUP
    words = [PYTHON, "-u", "-c", ORCHESTRATOR, str(root / "log"), "stay"]
    variables = environment(str(SUPPORT.parents[1]))
    hidden = subprocess.STARTUPINFO(dwFlags=subprocess.STARTF_USESHOWWINDOW)
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=variables, creationflags=flags, startupinfo=hidden
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"go\n")
        child.stdin.flush()
        with process.Pin.open(int(child.stdout.readline())) as pin:
            try:
                with process.Pin.open(child.pid) as orchestrator:
                    done = subprocess.run([PYTHON, "-c", CONSOLE, str(child.pid), how], check=False)
                    if done.returncode == 77 and wine.version() is None:
                        pytest.skip("a terminal shows it; scenarios/test_consoles.py closes such a one")
                    assert done.returncode == 0
                    assert orchestrator.wait(soon())
                    assert orchestrator.exit_status()
                assert not pin.wait(Deadline.after(0.3))
            finally:
                pin.terminate()
                assert pin.wait(soon())
                child.kill()


@pytest.mark.case("T35")
@pytest.mark.parametrize(("outer", "inner"), [(True, True), (False, True), (True, False)])
def test_in_nested_jobs_the_innermost_decides_what_may_leave_it(
    python, root: Path, *, outer: bool, inner: bool
) -> None:
    child = python(ORCHESTRATOR, str(root / "log"), "breakaway", ready=False)
    with jobs.Job(breakaway=outer) as above:
        above.add(child.pid)
        with jobs.Job(breakaway=inner) as job:
            job.add(child.pid)
            child.stdin.write(b"go\n")
            child.stdin.flush()
            said = child.stdout.readline().decode().strip()
            if not inner:
                assert said == "breakaway"
                return
            pin = process.Pin.open(int(said))
        with process.Pin.open(child.pid) as orchestrator:
            assert orchestrator.wait(soon())
        # The inner job has ended what was in it.
        assert not pin.wait(Deadline.after(0.3))
    with pin:
        # What left the inner one is in the outer one still, unless it may leave that, too.
        if outer:
            assert not pin.wait(Deadline.after(0.3))
            pin.terminate()
        assert pin.wait(soon())


def test_a_handle_of_a_pipe_is_never_asked_what_file_it_is(python) -> None:
    child = python("print(1, flush=True); import sys; sys.stdin.read()")
    with process.Pin.open(child.pid) as pin:
        # Its output is a pipe, which is no file: an answer, and no wait.
        assert not pin.holds_output(handles.identify(_own_executable()))


def _own_executable() -> int:
    return handles.open_path(sys.executable, native.FILE_READ_ATTRIBUTES, native.SHARE_ALL)
