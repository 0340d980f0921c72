"""What the guest's init reads from its kernel command line (contract openvmm 2.1).

The public init takes the first of a repeated token. The tokens that say what is mounted are stricter: a repeated,
malformed, conflicting or old-form one is refused, and nothing is probed.
"""

from __future__ import annotations

from fake_openvmm.blocks import Unmountable

BASES = {"distro": "0xd0003000", "runtime": "0xd0004000", "custom": "0xd0005000", "scratch": "0xd0006000"}
MAX_MAPPINGS = 4096
MAX_LABEL = 63
MAX_NAME = 64
UUID_PARTS = (8, 4, 4, 4, 12)
HEX = "0123456789abcdefABCDEF"
LABEL = "abcdefghijklmnopqrstuvwxyz0123456789-"
NAME = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"


class Layer:
    """One read-only layer: `identity` is None where the token names none."""

    __slots__ = ("format", "identity", "role")

    def __init__(self, role: str, format_: str, identity: str | None) -> None:
        self.role = role
        self.format = format_
        self.identity = identity


class BootTokens:
    """The tokens of one boot, checked as far as text can be.

    Attributes:
        layered: whether the guest boots a sandbox of layers.
        layers: in the order of the tokens.
        upper: `ext4`, `ramfs` or None (a direct guest).
        lifecycle: `managed`, `one-shot` or None.
        identity: (UID, GID) of the workload, or None.
        shares: (child, guest target, read-only) of each `nvx_share=`.
        mappings: how many mappings are announced, 0 without `nvx_maps=`.

    Raises:
        Unmountable: the guest refuses to boot.
    """

    __slots__ = (
        "_values",
        "arguments",
        "control_tty",
        "entrypoint",
        "hostname",
        "identity",
        "layered",
        "layers",
        "lifecycle",
        "mappings",
        "shares",
        "upper",
    )

    def __init__(self, cmdline: str) -> None:
        self._values: dict[str, list[str | None]] = {}
        for token in cmdline.split():
            key, equals, value = token.partition("=")
            self._values.setdefault(key, []).append(value if equals else None)
        self.layered = self._only("nvx_sandbox", "1") is not None
        self.layers: list[Layer] = []
        self.upper: str | None = None
        self.shares: list[tuple[str, str, bool]] = []
        self.mappings = 0
        self.arguments: list[str] = []
        self.entrypoint = "/bin/sh"
        self.lifecycle = self._first("nvx_lifecycle")
        self.control_tty = self._first("nvx_control_tty")
        uid, gid = self._first("nvx_workload_uid"), self._first("nvx_workload_gid")
        self.identity = (_number("nvx_workload_uid", uid), _number("nvx_workload_gid", gid)) if uid and gid else None
        if self.layered:
            self.hostname = self._label()
            self._layered()
        else:
            self.hostname = self._value("hostname", "nvx")
            self._direct()

    def has_share(self) -> bool:
        """Whether a shared directory is announced."""
        return "virtfs_dir" in self._values

    def _layered(self) -> None:
        for value in self._values.get("nvx_layer", ()):
            self._layer(value or "")
        if not any(layer.role == "distro" for layer in self.layers):
            raise Unmountable("no nvx_layer names the distro")
        scratch = self._only("nvx_scratch", f"{BASES['scratch']},ext4")
        memory = self._only("nvx_overlay_upper", "ramfs")
        if scratch and memory:
            raise Unmountable("nvx_scratch conflicts with nvx_overlay_upper")
        if not scratch and not memory:
            raise Unmountable("neither nvx_scratch nor nvx_overlay_upper")
        self.upper = "ext4" if scratch else "ramfs"
        self.entrypoint = self._value("nvx_entrypoint", self.entrypoint)
        if not self.entrypoint.startswith("/"):
            raise Unmountable("nvx_entrypoint isn't absolute")
        self.arguments = [argument or "" for argument in self._values.get("nvx_arg", ())]
        if not all(self.arguments):
            raise Unmountable("empty nvx_arg")
        for key in ("nvx_memory_max", "nvx_pids_max"):
            if key in self._values and not _number(key, self._first(key)):
                raise Unmountable(f"{key} is zero")
        for value in self._values.get("nvx_share", ()):
            self._share(value or "")

    def _layer(self, value: str) -> None:
        role, _, rest = value.partition(",")
        address, _, kind = rest.partition(",")
        format_, colon, identity = kind.partition(":")
        if role not in BASES or role == "scratch" or address != BASES[role] or format_ not in {"erofs", "gpt"}:
            raise Unmountable(f"malformed nvx_layer={value}")
        if colon and not _is_uuid(identity):
            raise Unmountable(f"malformed identity in nvx_layer={value}")
        if any(layer.role == role for layer in self.layers):
            raise Unmountable(f"nvx_layer names the {role} twice")
        self.layers.append(Layer(role, format_, identity.lower() if colon else None))

    def _share(self, value: str) -> None:
        child, _, rest = value.partition(",")
        target, _, mode = rest.rpartition(",")
        if not 0 < len(child) <= MAX_NAME or child.strip(NAME) or child in {".", ".."} or mode not in {"ro", "rw"}:
            raise Unmountable(f"malformed nvx_share={value}")
        if not target.startswith("/") or any(part in {"", ".", ".."} for part in target[1:].split("/")):
            raise Unmountable(f"malformed target in nvx_share={value}")
        if any(child == other or target == taken for other, taken, _ in self.shares):
            raise Unmountable(f"repeated nvx_share={value}")
        self.shares.append((child, target, mode == "ro"))

    def _direct(self) -> None:
        if self._first("nvx_workload_account") not in {None, "create"}:
            raise Unmountable("malformed nvx_workload_account")
        counts = self._values.get("nvx_maps", [])
        if len(counts) > 1:
            raise Unmountable("repeated nvx_maps")
        if counts:
            self.mappings = _number("nvx_maps", counts[0])
            if not 1 <= self.mappings <= MAX_MAPPINGS:
                raise Unmountable("nvx_maps outside 1 to 4096")
            if not self.has_share():
                raise Unmountable("nvx_maps without a mounted share")

    def _first(self, key: str) -> str | None:
        values = self._values.get(key)
        return None if values is None else values[0] or ""

    def _value(self, key: str, default: str) -> str:
        value = self._first(key)
        return default if value is None else value

    def _only(self, key: str, expected: str) -> str | None:
        values = self._values.get(key)
        if values is None:
            return None
        if values != [expected]:
            raise Unmountable(f"{key} must be {expected}, once")
        return expected

    def _label(self) -> str:
        label = self._value("nvx_hostname", "nvx-sandbox")
        if not 0 < len(label) <= MAX_LABEL or label.strip(LABEL) or label[0] == "-" or label[-1] == "-":
            raise Unmountable(f"malformed nvx_hostname={label}")
        return label


def _number(key: str, value: str | None) -> int:
    if not value or not value.isascii() or not value.isdecimal():
        raise Unmountable(f"malformed {key}={value}")
    return int(value)


def _is_uuid(text: str) -> bool:
    parts = text.split("-")
    return tuple(len(part) for part in parts) == UUID_PARTS and not "".join(parts).strip(HEX)
