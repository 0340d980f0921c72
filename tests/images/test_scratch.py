"""A scratch is mutable, bound by identity, kind and size, and owned by one sandbox."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from nvx_ref.deadline import Deadline
from nvx_ref.errors import Malformed, NotFound, Refused
from nvx_ref.images import ScratchBinding, check_scratch, verify_scratch
from system import FIFO, unix


@pytest.mark.spec("622.scope3.d")
def test_a_scratch_that_was_written_keeps_its_binding(scratch: Path) -> None:
    binding = verify_scratch(str(scratch))
    with scratch.open("r+b") as file:
        file.seek(1 << 20)
        file.write(b"data")
    with check_scratch(binding) as checked:
        assert checked.writable
        assert os.stat(checked.proc_path).st_ino == scratch.stat().st_ino


@pytest.mark.parametrize("what", ["zeros", "text", "empty"])
def test_a_scratch_without_a_filesystem_is_refused(tmp_path: Path, what: str) -> None:
    path = tmp_path / "scratch"
    path.write_bytes({"zeros": bytes(1 << 20), "text": b"not a disk" * 1000, "empty": b""}[what])
    with pytest.raises((Malformed, Refused)) as caught:
        verify_scratch(str(path))
    assert caught.value.subject == str(path)


def test_a_missing_scratch_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        verify_scratch(str(tmp_path / "scratch"))


@pytest.mark.case("T56")
@pytest.mark.parametrize("how", ["replace", "grow", FIFO, "gone"])
def test_a_scratch_that_became_another_is_refused(scratch: Path, tmp_path: Path, how: str) -> None:
    binding = ScratchBinding.of(str(scratch))
    if how == "replace":
        shutil.copy(scratch, tmp_path / "other")
        (tmp_path / "other").replace(scratch)
    elif how == "grow":
        os.truncate(scratch, 9 << 20)
    else:
        scratch.unlink()
        if how == "fifo":
            os.mkfifo(scratch)
    with pytest.raises((Refused, NotFound)):
        check_scratch(binding)


@pytest.mark.case("T56")
@pytest.mark.spec("622.scope3.e")
def test_a_second_sandbox_is_refused_until_the_first_lets_go(scratch: Path) -> None:
    binding = verify_scratch(str(scratch))
    with check_scratch(binding):
        for again in (check_scratch, lambda bound: verify_scratch(bound.path)):
            with pytest.raises(Refused) as caught:
                again(binding)
            assert caught.value.detail == "scratch-owned"
    check_scratch(binding).close()


@pytest.mark.case("T40")
def test_an_owner_that_lets_go_within_a_moment_is_no_owner(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binding = verify_scratch(str(scratch))
    first = check_scratch(binding)
    pauses: list[Deadline] = []

    def pause(deadline: Deadline) -> bool:
        pauses.append(deadline)
        if len(pauses) == 3:
            first.close()
        return True

    monkeypatch.setattr(Deadline, "pause", pause)
    check_scratch(binding).close()
    assert len(pauses) == 3


@pytest.mark.spec("622.scope3.e")
@unix("a VMM there inherits handles: tests/platform/windows/test_guards.py")
def test_ownership_lasts_as_long_as_the_process_that_inherited_it(scratch: Path) -> None:
    binding = verify_scratch(str(scratch))
    checked = check_scratch(binding)
    child = subprocess.Popen(
        [sys.executable, "-I", "-c", "import sys; print(flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[checked.fd],
    )
    with child:
        assert child.stdout is not None
        assert child.stdin is not None
        child.stdout.readline()
        checked.close()
        with pytest.raises(Refused):
            check_scratch(binding)
        child.stdin.close()
        child.wait()
    check_scratch(binding).close()


def test_a_scratch_binding_survives_its_json(scratch: Path) -> None:
    binding = verify_scratch(str(scratch))
    assert msgspec.json.decode(msgspec.json.encode(binding), type=ScratchBinding) == binding
    assert binding == ScratchBinding.of(str(scratch))
