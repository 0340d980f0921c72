"""The guest's init: it reads its command line and mounts by what is in the images (contract openvmm 6)."""

from __future__ import annotations

import os

from fake_openvmm.blocks import Device, Unmountable, read_erofs, read_gpt
from fake_openvmm.tokens import BootTokens

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fake_openvmm.ext4 import Ext4
    from fake_openvmm.machine import Json, MachineConfig, Tools
    from fake_openvmm.tokens import Layer

ADAPTER_LINE = b"nvx-fake-initramfs adapter"


class Mounted:
    """A guest whose file systems are mounted.

    Attributes:
        tokens: what its command line says.
        facts: what an agent or the evidence can tell of it, as JSON values.
        upper: the ext4 that keeps the workload's data, or None.
        adapter: whether the initramfs brings the test adapter's agent.
    """

    __slots__ = ("adapter", "facts", "tokens", "upper")

    def __init__(self, tokens: BootTokens, *, adapter: bool) -> None:
        self.tokens = tokens
        self.adapter = adapter
        self.facts: dict[str, Json] = {}
        self.upper: Ext4 | None = None

    def unmount(self) -> None:
        """Leave the upper clean."""
        if self.upper is not None:
            self.upper.mark(mounted=False)


def boot(config: MachineConfig, opened: dict[str, int], tools: Tools) -> Mounted:
    """Boot to the point where an agent can start; reads images through `opened` alone.

    Raises:
        Unmountable: init refuses, and the guest ends with 125.
    """
    tokens = BootTokens(config.cmdline)
    if tokens.layered and tokens.identity is None:
        raise Unmountable("no workload identity")
    if tokens.lifecycle == "managed" and (tokens.identity is None or tokens.control_tty is None):
        raise Unmountable("managed without identity or control terminal")
    guest = Mounted(tokens, adapter=_has_adapter(opened))
    layers = _mount_layers(config, opened, tools, tokens) if tokens.layered else []
    scratch = any(block.role == "scratch" for block in config.blocks)
    if tokens.layered:
        _check_shares(config, tokens)
        if scratch != (tokens.upper == "ext4"):
            raise Unmountable("the scratch device and the tokens disagree")
    guest.facts = {
        "cmdline": config.cmdline,
        "hostname": tokens.hostname,
        "layered": tokens.layered,
        "adapter": guest.adapter,
        "layers": layers,
        "upper": tokens.upper,
        "scratch": scratch,
    }
    if tokens.upper == "ext4":
        _mount_upper(guest, Device(opened["scratch"]))
    return guest


def _has_adapter(opened: dict[str, int]) -> bool:
    if "initrd" not in opened:
        return False
    start = Device(opened["initrd"], block=1)
    line = start.read(0, min(start.size, len(ADAPTER_LINE) + 2))
    return line.split(b"\n")[0].rstrip(b"\r") == ADAPTER_LINE


def _mount_layers(config: MachineConfig, opened: dict[str, int], tools: Tools, tokens: BootTokens) -> list[Json]:
    images = [block.role for block in config.blocks if block.readonly]
    named = [layer.role for layer in tokens.layers]
    if sorted(images) != sorted(named):
        raise Unmountable(f"devices {' '.join(images) or 'none'}, tokens {' '.join(named)}")
    return [_mount_layer(layer, opened[layer.role], tools) for layer in tokens.layers]


def _mount_layer(layer: Layer, fd: int, tools: Tools) -> Json:
    info = os.fstat(fd)
    facts: dict[str, Json] = {"role": layer.role, "format": layer.format, "filesystem": "erofs"}
    try:
        if layer.format == "gpt":
            disk = read_gpt(fd)
            found = facts["diskGuid"] = disk.guid
            device = disk.partition
        else:
            device = Device(fd, block=tools.knobs.integer("blockSize", 0))
            found = read_erofs(device)
        facts["uuid"] = read_erofs(device)
    except Unmountable as error:
        raise Unmountable(f"{layer.role}: {error}") from error
    if layer.identity is not None and layer.identity != found:
        raise Unmountable(f"{layer.role}: found {found}, not {layer.identity}")
    facts["blockSize"] = device.block
    facts["device"] = [info.st_dev, info.st_ino]
    return facts


def _mount_upper(guest: Mounted, device: Device) -> None:
    from fake_openvmm.ext4 import Ext4  # noqa: PLC0415 - a direct guest has no upper

    try:
        guest.upper = Ext4(device)
    except Unmountable as error:
        raise Unmountable(f"scratch: {error}") from error
    guest.facts["scratchUuid"] = guest.upper.uuid
    guest.facts["scratchBlockSize"] = device.block
    guest.facts["recovered"] = guest.upper.recovered
    guest.upper.mark(mounted=True)


def _check_shares(config: MachineConfig, tokens: BootTokens) -> None:
    if not tokens.shares:
        return
    children = {share.name for share in config.shares} if config.aggregate else set[str | None]()
    for child, target, _ in tokens.shares:
        if child not in children:
            raise Unmountable(f"nvx_share of {target}: no child {child}")
