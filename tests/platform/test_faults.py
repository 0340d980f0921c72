"""Every system call that fails, anywhere: a typed error that names the file, no descriptor lost, nothing half-done."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from nvx_ref.deadline import Deadline
from nvx_ref.errors import LaunchFailed, NvxError
from nvx_ref.platform import endpoint, files, process, spawn
from nvx_ref.platform.linux import children
from nvx_ref.process import ProcessRef

pytestmark = [pytest.mark.usefixtures("no_leak"), pytest.mark.case("T17")]

CALLS = [
    "open", "stat", "write", "read", "fsync", "rename", "unlink", "rmdir", "mkdir", "listdir", "chmod", "fchmod",
    "ftruncate", "readlink", "dup", "pipe2", "waitid", "pidfd_open",
]  # fmt: skip
ERRORS = [errno.ENOSPC, errno.EIO, errno.EMFILE, errno.EACCES, errno.EROFS]


@contextmanager
def opened(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


def directory_work(root: str) -> None:
    directory, _ = files.create_private(f"{root}/a/b")
    with directory:
        directory.create_new("new", b"x")
        directory.replace("put", b"y", durable=True)
        directory.read("put", 10)
        directory.stat("new")
        directory.names()
        with opened(directory.open_log("log")) as log, opened(directory.open_lock("lock")) as lock:
            files.claim_log(log)
            files.truncate(log)
            files.claim_is_held(directory, "log", files.file_id(log))
            files.try_lock(lock)
            files.names_file(directory, "lock", lock)
            files.unlock(lock)
            files.seal(log)
        for opener in (files.open_image, files.open_scratch):
            os.close(opener(f"{root}/a/b/put"))
        for name in ("new", "put", "log", "lock"):
            directory.remove(name)
        directory.is_current()
        directory.sync()
        directory.remove_self()


def process_work(root: str) -> None:
    own = process.own_identity()
    with suppress(LookupError):
        ref = ProcessRef.open(own)
        if ref is not None:
            with ref:
                ref.has_exited()
                ref.exit_status()
                ref.holds_output(files.FileId("0", "0"))
    process.exited_by_number(own)
    endpoint.choose(root)
    os.close(spawn.pipe_with(b"x"))


def outcome(work: Callable[[str], None], target: str) -> str:
    try:
        work(target)
    except NvxError as error:
        return str(error)
    return ""


def failing(function: Callable[..., object], number: int, which: int) -> tuple[Callable[..., object], list[int]]:
    count = [0]

    def call(*arguments: object, **options: object) -> object:
        count[0] += 1
        if count[0] == which:
            raise OSError(number, os.strerror(number))
        return function(*arguments, **options)

    return call, count


@pytest.mark.parametrize("work", [directory_work, process_work])
@pytest.mark.parametrize("call", CALLS)
def test_a_failing_call_is_a_typed_error(
    short_root: str, monkeypatch: pytest.MonkeyPatch, work: Callable[[str], None], call: str
) -> None:
    for number in ERRORS:
        for which in range(1, 60):
            target = f"{short_root}/{call}.{number}.{which}"
            os.mkdir(target, 0o700)
            with monkeypatch.context() as patch:
                replaced, count = failing(getattr(os, call), number, which)
                patch.setattr(os, call, replaced)
                text = outcome(work, target)
            assert "\n" not in text
            assert "[Errno" not in text
            names = [name for _, _, found in os.walk(target) for name in found]
            assert not [name for name in names if name.endswith(".tmp") and call != "unlink"]
            if count[0] < which:
                break
        else:
            pytest.fail("the sweep didn't reach its end")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EIO, errno.EBADF])
def test_a_failing_lock_is_not_a_held_one(
    sandbox: files.Directory, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    lock = sandbox.open_lock("lock")

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", fail)
    for attempt in (files.try_lock, files.claim_log, files.unlock):
        with pytest.raises(NvxError) as caught:
            attempt(lock)
        assert caught.value.subject == f"{sandbox.path}/lock"
    with pytest.raises(NvxError):
        files.claim_is_held(sandbox, "lock", files.file_id(lock))
    os.close(lock)


@pytest.mark.parametrize("number", [errno.EIO, errno.EINTR, errno.ENOSPC])
def test_a_failing_close_loses_nothing(sandbox: files.Directory, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """The kernel frees the number all the same. Only a close after a write may be about content."""
    sandbox.replace("a", b"old", durable=True)
    real = os.close

    def close(fd: int) -> None:
        real(fd)
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "close", close)
        assert sandbox.read("a", 10) == b"old"
        assert sandbox.names() == ["a"]
        with process.Pin.open(os.getpid()) as pin:
            assert not pin.has_exited()
        other = files.open_private(sandbox.path)
        other.close()
        if number == errno.EINTR:
            sandbox.replace("a", b"new", durable=True)
        else:
            with pytest.raises(NvxError):
                sandbox.replace("a", b"new", durable=True)
    assert sandbox.read("a", 10) == (b"new" if number == errno.EINTR else b"old")
    assert sandbox.names() == ["a"]


class Interrupted(BaseException):
    """Stands for Ctrl-C."""


@pytest.mark.spec("656.launch.f")
@pytest.mark.parametrize("error", [OSError(errno.EIO, "close"), Interrupted()])
def test_a_spawn_that_fails_after_its_fork_ends_its_child(
    sandbox: files.Directory, monkeypatch: pytest.MonkeyPatch, soon: Deadline, error: BaseException
) -> None:
    """The child's number is known by then, and a child that nobody knows must not stay."""
    started: list[int] = []
    real = subprocess.Popen._execute_child  # type: ignore[attr-defined]

    def execute(popen: subprocess.Popen[bytes], *arguments: object) -> None:
        real(popen, *arguments)
        started.append(popen.pid)
        raise error

    monkeypatch.setattr(subprocess.Popen, "_execute_child", execute)
    null = os.open("/dev/null", os.O_RDWR)
    with pytest.raises((LaunchFailed, Interrupted)):
        spawn.spawn(["sleep", "100"], stdin=null, output=null, allowed=[], cwd=sandbox.path)
    os.close(null)
    assert len(started) == 1
    with pytest.raises(ProcessLookupError):
        os.getsid(started[0])
    assert started[0] not in children._children
    assert not soon.expired()


def test_a_child_that_could_not_be_pinned_at_its_spawn_is_pinned_later(
    monkeypatch: pytest.MonkeyPatch, soon: Deadline
) -> None:
    null = os.open("/dev/null", os.O_RDWR)

    def full(*_: object) -> int:
        raise OSError(errno.EMFILE, "full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pidfd_open", full)
        child = spawn.spawn(["sleep", "100"], stdin=null, output=null, allowed=[], cwd="/")
    os.close(null)
    assert child.terminate(soon)
    with child.pin() as pin:
        assert pin.exit_status() == -9
