"""The backend: which ways to misbehave a real guest has, and what its VMMs are told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.backends.contract import LINUX, SWEEP, WORKER
from harness.backends.qemu import Qemu, QemuSide
from harness.errors import Unsupported
from harness.qemu.setup import Built


@pytest.fixture
def backend(tmp_path: Path) -> Qemu:
    return Qemu(Built(str(tmp_path), "6.1"), "tcg")


@pytest.fixture
def side(backend: Qemu, tmp_path: Path) -> QemuSide:
    return backend.begin(str(tmp_path), token="t", channel="c", evidence=str(tmp_path / "fake"))  # noqa: S106 - a test's name


def told(tmp_path: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((tmp_path / "side.json").read_text())
    return found


def test_its_vmms_are_told_of_the_machine_whatever_else_they_are_told(side: QemuSide, tmp_path: Path) -> None:
    machine = told(tmp_path)["machine"]
    assert isinstance(machine, dict)
    assert (machine["holder"], machine["accel"]) == (str(tmp_path / "holder"), "tcg")
    side.configure(pauses=["before_bind", "before_open:distro"], knobs={"guest_exit_at": {"guest_boot": 125}})
    assert told(tmp_path)["machine"] == machine
    assert told(tmp_path)["pauses"] == ["before_bind", "before_open:distro"]


@pytest.mark.parametrize(
    ("pauses", "knobs", "reason"),
    [
        (["before_exec"], {}, "can't be held at before_exec"),
        (["before_maps#2"], {}, "can't be held at before_maps#2"),
        ([], {"frames": []}, "has no knob frames"),
        ([], {"reboot_at": ["guest_boot"]}, "has no knob reboot_at"),
        ([], {"guest_exit_at": {"after_ready": 1}}, "can't end at after_ready"),
        ([], {"guest_dead_at": ["guest_trigger"]}, "can't end at guest_trigger"),
    ],
)
def test_what_a_real_guest_can_not_do_skips_with_the_reason_and_changes_nothing(
    side: QemuSide, tmp_path: Path, pauses: list[str], knobs: dict[str, object], reason: str
) -> None:
    before = told(tmp_path)
    with pytest.raises(Unsupported, match=f"^qemu: a real guest {reason}$"):
        side.configure(pauses=pauses, knobs=knobs)
    assert told(tmp_path) == before


def test_it_is_a_machine_of_its_own_that_boots_for_seconds(backend: Qemu) -> None:
    assert [backend.lacks(need) for need in (LINUX, WORKER, "guest:direct", "guest:adapter", "sectors:4096")] == [
        None
    ] * 5
    assert backend.lacks(SWEEP)
    assert backend.boot > 0
    assert Qemu(Built("/", "6.1"), "kvm").boot < backend.boot
