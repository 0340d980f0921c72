"""Locks, claims, seals and opened files."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest

from nvx_ref.errors import NotFound, Refused
from nvx_ref.platform import files
from nvx_ref.platform.contract import FileId, FileKind, FileSeal

pytestmark = pytest.mark.usefixtures("no_leak")


@pytest.fixture
def log(sandbox: files.Directory) -> FileId:
    """A log that exists."""
    sandbox.create_new("openvmm.log", b"")
    found = sandbox.stat("openvmm.log")
    assert found is not None
    return found.id


def test_a_lock_excludes_every_other_open(sandbox: files.Directory) -> None:
    first, second = sandbox.open_lock("lock"), sandbox.open_lock("lock")
    assert files.try_lock(first)
    assert not files.try_lock(second)
    files.unlock(first)
    assert files.try_lock(second)
    os.close(first)
    os.close(second)


def test_a_removed_or_replaced_lock_is_told_apart(sandbox: files.Directory) -> None:
    lock = sandbox.open_lock("lock")
    assert files.names_file(sandbox, "lock", lock)
    sandbox.remove("lock")
    assert not files.names_file(sandbox, "lock", lock)
    os.close(sandbox.open_lock("lock"))
    assert not files.names_file(sandbox, "lock", lock)
    os.close(lock)


@pytest.mark.spec("620.scope2.c")
def test_a_claim_lives_in_the_process_that_inherited_the_log(sandbox: files.Directory, log: FileId) -> None:
    assert files.claim_is_held(sandbox, "openvmm.log", log) is False
    fd = sandbox.open_log("openvmm.log")
    assert files.claim_log(fd)
    assert files.claim_is_held(sandbox, "openvmm.log", log) is True
    with subprocess.Popen([sys.executable, "-I", "-c", "input()"], stdin=subprocess.PIPE, stdout=fd) as holder:
        os.close(fd)
        assert files.claim_is_held(sandbox, "openvmm.log", log) is True
        again = sandbox.open_log("openvmm.log")
        assert not files.claim_log(again)
        os.close(again)
        holder.communicate(b"\n")
    assert files.claim_is_held(sandbox, "openvmm.log", log) is False


@pytest.mark.case("T07a")
@pytest.mark.parametrize("how", ["renamed", "removed", "replaced", "linked", "fifo"])
def test_a_log_that_is_not_the_claimed_one_proves_nothing(sandbox: files.Directory, log: FileId, how: str) -> None:
    fd = sandbox.open_log("openvmm.log")
    assert files.claim_log(fd)
    path = f"{sandbox.path}/openvmm.log"
    os.rename(path, f"{path}.1")
    if how == "replaced":
        sandbox.create_new("openvmm.log", b"")
    elif how == "linked":
        os.symlink("openvmm.log.1", path)
    elif how == "fifo":
        os.mkfifo(path)
    elif how == "removed":
        sandbox.remove("openvmm.log.1")
    assert files.claim_is_held(sandbox, "openvmm.log", log) is None
    if how != "removed":
        assert files.claim_is_held(sandbox, "openvmm.log.1", log) is True
    os.close(fd)


def test_a_log_that_is_replaced_while_it_is_opened_proves_nothing(
    sandbox: files.Directory, log: FileId, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def racing(path: str, flags: int, *, dir_fd: int | None = None) -> int:
        monkeypatch.setattr(os, "open", real)
        sandbox.replace("openvmm.log", b"", durable=False)
        return real(path, flags, dir_fd=dir_fd)

    fd = sandbox.open_log("openvmm.log")
    assert files.claim_log(fd)
    monkeypatch.setattr(os, "open", racing)
    assert files.claim_is_held(sandbox, "openvmm.log", log) is None
    os.close(fd)


def test_two_who_look_do_not_take_each_other_for_the_vmm(
    sandbox: files.Directory, log: FileId, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, answers = fcntl.flock, []

    def look_inside(fd: int, operation: int) -> None:
        real(fd, operation)
        if operation & fcntl.LOCK_SH:
            monkeypatch.setattr(fcntl, "flock", real)
            answers.append(files.claim_is_held(sandbox, "openvmm.log", log))

    monkeypatch.setattr(fcntl, "flock", look_inside)
    assert files.claim_is_held(sandbox, "openvmm.log", log) is False
    assert answers == [False]


def test_a_look_leaves_no_claim(sandbox: files.Directory, log: FileId) -> None:
    assert files.claim_is_held(sandbox, "openvmm.log", log) is False
    fd = sandbox.open_log("openvmm.log")
    assert files.claim_log(fd)
    os.close(fd)


@pytest.mark.parametrize(("number", "proof"), [(errno.EACCES, True), (errno.EMFILE, False), (errno.EIO, False)])
def test_a_fault_of_this_process_is_not_taken_for_a_missing_log(
    sandbox: files.Directory, log: FileId, monkeypatch: pytest.MonkeyPatch, number: int, *, proof: bool
) -> None:
    def fail(*_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", fail)
    if proof:
        assert files.claim_is_held(sandbox, "openvmm.log", log) is None
    else:
        with pytest.raises(Refused, match=errno.errorcode[number]):
            files.claim_is_held(sandbox, "openvmm.log", log)


def measured(path: str) -> FileSeal:
    fd = files.open_image(path)
    try:
        return files.seal(fd)
    finally:
        os.close(fd)


@pytest.mark.spec("622p1.scope2")
def test_a_seal_is_stable_and_round_trips(sandbox: files.Directory) -> None:
    sandbox.create_new("image", b"x" * 1000)
    seal = measured(f"{sandbox.path}/image")
    assert seal == measured(f"{sandbox.path}/image")
    assert (seal.scheme, seal.kind, seal.length) == ("unix-file-v1", FileKind.REGULAR, 1000)
    os.utime(f"{sandbox.path}/image", ns=(1, 1_234_567_890_123_456_789))
    seal = measured(f"{sandbox.path}/image")
    assert (seal.modified, seal.changed) == (1_234_567_890_123_456_789, os.stat(f"{sandbox.path}/image").st_ctime_ns)
    assert msgspec.json.decode(msgspec.json.encode(seal), type=FileSeal) == seal
    found = sandbox.stat("image")
    assert found is not None
    assert seal.id == found.id


@pytest.mark.parametrize("change", ["content", "times", "replaced", "mode"])
def test_a_seal_notices_every_accident(sandbox: files.Directory, change: str) -> None:
    path = f"{sandbox.path}/image"
    Path(path).write_bytes(b"x" * 1000)
    os.utime(path, ns=(1, 10**9))
    before = measured(path)
    if change == "content":
        Path(path).write_bytes(b"y" * 1000)
    elif change == "times":
        os.utime(path, ns=(1, 2 * 10**9))
    elif change == "replaced":
        Path(f"{path}2").write_bytes(b"x" * 1000)
        os.utime(f"{path}2", ns=(1, 10**9))
        os.rename(f"{path}2", path)
    elif change == "mode":
        # The clock of a file system is coarse; a change time in the same tick would be equal.
        while True:
            os.chmod(path, 0o400)
            if measured(path).changed != before.changed:
                break
    assert measured(path) != before


def test_a_seal_reads_nothing(sandbox: files.Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox.create_new("image", b"x" * 1000)

    def fail(*_: object) -> bytes:
        raise AssertionError("the content was read")

    monkeypatch.setattr(os, "read", fail)
    monkeypatch.setattr(os, "pread", fail)
    assert measured(f"{sandbox.path}/image").length == 1000


@pytest.mark.spec("622p1.scope7.b")
@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="needs a file system in memory at /dev/shm")
def test_a_seal_is_no_proof_against_its_own_account() -> None:
    """A mapping that wrote before the check still writes after it, and in memory no time changes then."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as image:
        image.write(b"checked")
        image.flush()
        with mmap.mmap(image.fileno(), 7) as kept:
            kept[:] = b"checked"
            before = measured(image.name)
            kept[:] = b"swapped"
            assert measured(image.name) == before
        assert Path(image.name).read_bytes() == b"swapped"
        # An ordinary rewrite, the accident that a seal is for, is seen.
        os.utime(image.name, ns=(0, 0))
        assert measured(image.name) != before


def test_a_file_from_before_1970_has_a_seal(sandbox: files.Directory) -> None:
    sandbox.create_new("image", b"")
    os.utime(f"{sandbox.path}/image", ns=(0, -(10**9)))
    seal = measured(f"{sandbox.path}/image")
    assert seal.modified == -(10**9)
    assert msgspec.json.decode(msgspec.json.encode(seal), type=FileSeal) == seal


def test_an_image_is_opened_without_waiting(sandbox: files.Directory) -> None:
    os.mkfifo(f"{sandbox.path}/fifo")
    fd = files.open_image(f"{sandbox.path}/fifo")
    assert files.seal(fd).kind is FileKind.FIFO
    os.close(fd)


@pytest.mark.parametrize("attempt", [files.open_image, files.open_scratch])
def test_a_file_that_cant_be_opened_is_named(sandbox: files.Directory, attempt: object) -> None:
    assert callable(attempt)
    with pytest.raises(NotFound) as caught:
        attempt(f"{sandbox.path}/none")
    assert caught.value.subject == f"{sandbox.path}/none"
    with pytest.raises(Refused):
        attempt("a\0b")


def test_a_scratch_that_is_a_directory_is_refused(sandbox: files.Directory) -> None:
    with pytest.raises(Refused, match="EISDIR"):
        files.open_scratch(sandbox.path)


def test_proc_path_names_the_object_and_not_the_name(sandbox: files.Directory) -> None:
    sandbox.create_new("image", b"checked")
    fd = files.open_image(f"{sandbox.path}/image")
    sandbox.replace("image", b"swapped", durable=False)
    assert Path(files.proc_path(fd)).read_bytes() == b"checked"
    os.close(fd)


def test_a_closed_number_is_refused() -> None:
    fd = os.open("/dev/null", os.O_RDONLY)
    os.close(fd)
    for attempt in (files.file_id, files.seal, files.try_lock, files.truncate):
        with pytest.raises(Refused, match="EBADF"):
            attempt(fd)


@pytest.mark.parametrize(
    "bad", ['{"volume":"0A","file":"1"}', '{"volume":"01","file":"1"}', '{"volume":"","file":"1"}']
)
def test_a_file_id_has_one_form(bad: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(bad, type=FileId)
