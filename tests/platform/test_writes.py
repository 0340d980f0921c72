"""Writes in a private directory: whole or not at all, whatever fails on the way."""

from __future__ import annotations

import errno
import os
import re
import stat
import subprocess
import sys

import pytest

from nvx_ref.errors import Refused
from nvx_ref.platform import files

pytestmark = pytest.mark.usefixtures("no_leak")


@pytest.mark.parametrize("failing", ["write", "fsync", "rename", "close-nothing"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_failed_write_leaves_the_old_content_and_no_temporary_file(
    sandbox: files.Directory, monkeypatch: pytest.MonkeyPatch, failing: str, number: int
) -> None:
    if failing == "close-nothing":
        # The control: without a fault the new content is there.
        sandbox.replace("a", b"new", durable=True)
        assert sandbox.read("a", 10) == b"new"
        return
    sandbox.replace("a", b"old", durable=True)

    def fail(*_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, failing, fail)
        with pytest.raises(Refused, match=errno.errorcode[number]) as caught:
            sandbox.replace("a", b"new", durable=True)
    assert caught.value.subject == f"{sandbox.path}/a"
    assert caught.value.hint
    assert sandbox.names() == ["a"]
    assert sandbox.read("a", 10) == b"old"


def test_a_failed_creation_leaves_nothing(sandbox: files.Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fail)
        with pytest.raises(Refused, match="ENOSPC"):
            sandbox.create_new("a", b"x")
    assert sandbox.names() == []


def test_an_interrupted_write_leaves_no_temporary_file(
    sandbox: files.Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    for failing in ("fsync", "rename"):
        with monkeypatch.context() as patch:
            patch.setattr(os, failing, interrupt)
            with pytest.raises(KeyboardInterrupt):
                sandbox.replace("a", b"x", durable=True)
    assert sandbox.names() == []


def test_a_short_write_is_continued(sandbox: files.Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data[:3])))
    sandbox.replace("a", b"0123456789", durable=False)
    assert sandbox.read("a", 20) == b"0123456789"


@pytest.mark.parametrize(("durable", "syncs"), [(False, 1), (True, 2)])
def test_only_a_durable_write_syncs_the_directory(
    sandbox: files.Directory, monkeypatch: pytest.MonkeyPatch, *, durable: bool, syncs: int
) -> None:
    seen: list[int | str] = []
    sync, rename = os.fsync, os.rename

    def noted_sync(fd: int) -> None:
        seen.append(stat.S_IFMT(os.fstat(fd).st_mode))
        sync(fd)

    def noted_rename(*names: str, **directories: int) -> None:
        seen.append("rename")
        rename(*names, **directories)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(os, "rename", noted_rename)
    sandbox.replace("a", b"x", durable=durable)
    # The content before the name, the name before its directory: any other order survives no power cut.
    assert seen == [stat.S_IFREG, "rename", stat.S_IFDIR][: syncs + 1]


def test_a_file_system_that_cant_sync_directories_is_fine(
    sandbox: files.Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync

    def refuse(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "no")
        real(fd)

    monkeypatch.setattr(os, "fsync", refuse)
    sandbox.replace("a", b"x", durable=True)
    assert sandbox.read("a", 10) == b"x"


KILLED = """
import os, sys
from nvx_ref.platform import files
directory = files.open_private(sys.argv[1])
which, count = int(sys.argv[2]), 0
def count_down(real):
    def call(*arguments, **options):
        global count
        count += 1
        if count == which and sys.argv[3] == "before": os.kill(os.getpid(), 9)
        answer = real(*arguments, **options)
        if count == which: os.kill(os.getpid(), 9)
        return answer
    return call
for name in ("open", "write", "fsync", "rename", "close", "unlink"):
    setattr(os, name, count_down(getattr(os, name)))
directory.replace("a", b"new" * 100, durable=True)
print("done")
"""


@pytest.mark.case("T45")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_at_any_call_leaves_the_old_or_the_new_content_whole(sandbox: files.Directory, when: str) -> None:
    seen: list[bytes | None] = []
    for which in range(1, 30):
        for name in sandbox.names():
            sandbox.remove(name)
        sandbox.create_new("a", b"old")
        ended = subprocess.run(
            [sys.executable, "-I", "-c", KILLED, sandbox.path, str(which), when], capture_output=True, check=False
        )
        seen.append(sandbox.read("a", 1000))
        leftovers = [name for name in sandbox.names() if name != "a"]
        assert [name for name in leftovers if not re.fullmatch(r"\.a\.[0-9a-f]{32}\.tmp", name)] == []
        if ended.stdout == b"done\n":
            break
        assert ended.returncode == -9
    assert set(seen) == {b"old", b"new" * 100}
    assert seen == sorted(seen, reverse=True)
    assert len(seen) > 5
