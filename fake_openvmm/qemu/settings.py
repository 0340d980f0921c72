"""What the side file says of the machine: `{"qemu": PATH, "holder": PATH, "accel": "tcg" or "kvm"}`."""

from __future__ import annotations

import os

from fake_openvmm.knobs import SideFileError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fake_openvmm.knobs import Knobs
    from fake_openvmm.machine import Json

ACCELERATORS = ("tcg", "kvm")

GUEST_POINTS = ("guest_boot", "guest_attach", "before_maps", "before_exec", "before_stopped")
"""Points that the agent passes in the guest, where nobody can hold it, but where it can end."""

FLAGS = ("never_attaches", "old_guest", "ignore_stop", "ignore_cancel")
NUMBERS = ("attach_delay_ms", "features", "refuse_maps", "refuse_mapping", "refuse_status")
ENDS = {"guest_exit_at": "exit", "guest_dead_at": "panic", "guest_hangs_at": "hang"}
UNKNOWN = ("exit_code", "reboot_at", "guest", "frames")


class Settings:
    """A checked description.

    Attributes:
        qemu: the emulator's path.
        holder: the path of the program that becomes it.
        accelerator: `tcg` or `kvm`.

    Raises:
        SideFileError: it isn't what the harness may write.
    """

    __slots__ = ("accelerator", "holder", "qemu")

    def __init__(self, values: dict[str, Json]) -> None:
        unknown = sorted(set(values) - {"qemu", "holder", "accel"})
        if unknown:
            raise SideFileError(f"unknown keys of 'machine': {', '.join(unknown)}")
        self.qemu = _program(values, "qemu")
        self.holder = _program(values, "holder")
        accelerator = values.get("accel", ACCELERATORS[0])
        if not isinstance(accelerator, str) or accelerator not in ACCELERATORS:
            raise SideFileError(f"'accel' is one of {', '.join(ACCELERATORS)}, not {accelerator!r}")
        self.accelerator = accelerator


def _program(values: dict[str, Json], key: str) -> str:
    value = values.get(key)
    if not isinstance(value, str) or not os.path.isabs(value):
        raise SideFileError(f"'{key}' of 'machine' is an absolute path, not {value!r}")
    return value


def guest_lines(knobs: Knobs) -> list[str]:
    """What the agent has to know of the knobs, as lines of its `/nvx.conf`.

    Raises:
        SideFileError: a knob that a real guest has no counterpart of.
    """
    for name in UNKNOWN:
        if name in knobs:
            raise SideFileError(f"a real guest has no knob {name!r}")
    lines = [f"flag {name}" for name in FLAGS if knobs.flag(name)]
    lines += [f"number {name} {knobs.integer(name, 0)}" for name in NUMBERS if name in knobs]
    for name, word in ENDS.items():
        table = knobs.table(name) if name == "guest_exit_at" else dict.fromkeys(_points(knobs, name), 1)
        for point, value in table.items():
            if point not in GUEST_POINTS:
                raise SideFileError(f"a real guest can't be ended at {point!r}")
            lines.append(f"{word} {point} {value}")
    return lines


def _points(knobs: Knobs, name: str) -> list[str]:
    return [str(entry) for entry in knobs.items(name)]
