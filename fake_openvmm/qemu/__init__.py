"""A real Linux guest behind the front: QEMU in place of the guest model, at the side file's request.

The options, the checks, the effective command line, the broker and the report stay the front's. QEMU is owned by the
process that they run in and never outlives it; the agent in `agent/` is the guest's init.
"""

from __future__ import annotations

import sys

from fake_openvmm.machine import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fake_openvmm.machine import Json, MachineConfig, Tools


def run(config: MachineConfig, opened: dict[str, int], tools: Tools, described: dict[str, Json]) -> int:
    """Run the machine that the side file describes until its guest ends; see `qemu.machine.run`.

    Raises:
        Failure: it can't run here.
        SideFileError: the description isn't what the harness may write.
    """
    if sys.platform == "win32":
        raise Failure("a real guest behind the front takes Linux")
    else:  # noqa: RET506 - tells type checkers which half of the world this is
        from fake_openvmm.qemu import machine, settings  # noqa: PLC0415 - on Linux only

        return machine.run(config, opened, tools, settings.Settings(described))
