"""A guest without a managed agent: the entrypoint runs once (contract openvmm 6)."""

from __future__ import annotations

from fake_openvmm.execution import Sink
from fake_openvmm.nvxc import FAILED, ExecRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fake_openvmm.boot import Mounted
    from fake_openvmm.vm import Vm


def start(vm: Vm, mounted: Mounted) -> None:
    """Run the entrypoint of a layered guest; a direct one powers off at once."""
    tokens = mounted.tokens
    if not tokens.layered:
        vm.power_off(0)
        return
    words = (tokens.entrypoint, *tokens.arguments)
    request = ExecRequest(0, [word.encode(errors="surrogateescape") for word in words])
    try:
        vm.execute(request, _Console(vm), limited=False)
    except OSError:
        vm.power_off(FAILED)


class _Console(Sink):
    """Puts what the entrypoint says on the boot console, and ends the guest with it."""

    def __init__(self, vm: Vm) -> None:
        self._vm = vm

    def output(self, stream: int, data: bytes) -> None:
        del stream
        self._vm.tools.console(data)

    def ended(self, category: str, status: int) -> None:
        del category
        self._vm.tools.console(f"NVX-SANDBOX-EXIT: status={status}\r\n".encode())
        self._vm.power_off(status)

    def refused(self, stage: int, error: int) -> None:
        del stage, error
        self.ended("exit", FAILED)
