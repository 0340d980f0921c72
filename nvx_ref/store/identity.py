"""What runs: the runtime identity of a launch, and how two of them compare."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

from nvx_ref.errors import Malformed

MAX_TEXT = 4096
"""The longest text of a part, in characters."""

Text = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_TEXT)]


class IdentityPart(StrEnum):
    """A part of the runtime identity, in the fixed order in which differences are named."""

    OPENVMM = "openvmm"
    KERNEL = "kernel"
    INITRAMFS = "initramfs"
    BOOT_CONTRACT = "bootContract"
    CONTROL_CONTRACT = "controlContract"


class RuntimeIdentity(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The artifacts and contracts that a VMM was launched with (620.scope1.f).

    The store compares these texts and never interprets them; they come from install or staging metadata, and
    nothing is hashed for them (620.scope1.g).

    Args:
        openvmm: The VMM's digest, ``sha256:<64 hex>``.
        kernel: The kernel's.
        initramfs: The initramfs's.
        boot_contract: For example ``microvm-abi/2``.
        control_contract: ``<revision>/session-1``.
    """

    openvmm: Text
    kernel: Text
    initramfs: Text
    boot_contract: Text
    control_contract: Text

    def validate(self) -> None:
        """Check what a constructor doesn't: every part is a text that a record can hold.

        Raises:
            Malformed: A part is empty, over 4,096 characters or no UTF-8; the subject names it.
        """
        for part in IdentityPart:
            if not _is_text(self.part(part)):
                raise Malformed(
                    "must be a nonempty text of at most 4,096 characters",
                    subject=f"runtime identity: {part}",
                    hint="take it from the artifacts' manifest and SHA256SUMS",
                    detail="identity",
                )

    def part(self, part: IdentityPart) -> str:
        """Return the text of one part."""
        return {
            IdentityPart.OPENVMM: self.openvmm,
            IdentityPart.KERNEL: self.kernel,
            IdentityPart.INITRAMFS: self.initramfs,
            IdentityPart.BOOT_CONTRACT: self.boot_contract,
            IdentityPart.CONTROL_CONTRACT: self.control_contract,
        }[part]

    def differences(self, other: RuntimeIdentity) -> tuple[IdentityPart, ...]:
        """Return the parts that differ, in their fixed order; none when both are the same runtime."""
        return tuple(part for part in IdentityPart if self.part(part) != other.part(part))


def _is_text(value: object) -> bool:
    try:
        return isinstance(value, str) and 0 < len(value) <= MAX_TEXT and bool(value.encode())
    except UnicodeEncodeError:
        return False
