"""The store's two records, and the one way in which a record is read and written.

A record is accepted only if its bytes, white space aside, equal its own re-encoding: another build or another
language can write one, but a duplicate key, another order, a ``null`` or a needless escape is damage, and damage is
reported with the file's name. It is never read as "absent".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeVar

import msgspec

from nvx_ref.errors import Malformed
from nvx_ref.platform.contract import BootName, FileId, ProcessIdentity
from nvx_ref.store.identity import RuntimeIdentity, Text

if TYPE_CHECKING:
    from nvx_ref.store.identity import IdentityPart

FORMAT: Final = 1
"""The one format. Nothing older is read, nothing is migrated (620.scope1.k, l)."""

MAX_RECORD = 64 * 1024
"""The largest record in bytes."""

MAX_CONFIGURATION = 16 * 1024 * 1024
"""The largest configuration of the caller's, in bytes."""

LaunchId = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{32}\Z")]


class Journal(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, rename="camel"
):
    """``launch.json``: a launch that was begun and not yet committed (620.scope2.a, b).

    Args:
        format: :data:`FORMAT`.
        launch_id: 32 random hexadecimal digits, shared with the runtime record that the commit writes.
        process: The VMM, from right after its spawn on.
        endpoint: Where the VMM serves its control session.
        log: The log as an object: the claim counts on it alone.
        boot: The boot in which the launch was begun, while ``process`` doesn't say it; a marker may lack it.

    Raises:
        ValueError: Both ``process`` and ``boot`` are there; a record like that is malformed.
    """

    format: Literal[1]
    launch_id: LaunchId
    process: ProcessIdentity | None = None
    endpoint: Text
    log: FileId
    boot: BootName | None = None

    def __post_init__(self) -> None:
        if self.process is not None and self.boot is not None:
            raise ValueError("a journal with a process has its boot there")


WAY_OUT = (
    "it is kept as it is; restore it, or make sure that no OpenVMM of this sandbox runs (none has openvmm.log beside "
    "it open) and delete it"
)
"""What to do about a record that can't be read: nothing is guessed from what is left of it."""


class RuntimeRecord(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, rename="camel"
):
    """``runtime.json``: the VMM of a committed launch (620.scope1.c to f).

    Args:
        format: :data:`FORMAT`.
        launch_id: As in the journal of the same launch.
        process: The VMM, its host boot included.
        endpoint: Where the VMM serves its control session.
        log: The log that the VMM holds a claim on.
        identity: What was launched.
    """

    format: Literal[1]
    launch_id: LaunchId
    process: ProcessIdentity
    endpoint: Text
    log: FileId
    identity: RuntimeIdentity

    def check_identity(self, identity: RuntimeIdentity) -> tuple[IdentityPart, ...]:
        """Compare with the runtime identity of the one who asks (620.scope3.m).

        Returns:
            The parts that differ, in their fixed order; empty when it is the same runtime.
        """
        return self.identity.differences(identity)


class _Versioned(msgspec.Struct):
    format: int
    pid: int | None = None


_Record = TypeVar("_Record", bound="Journal | RuntimeRecord")
_JSON_FAULTS = (msgspec.MsgspecError, RecursionError, ValueError)


def decode(raw: bytes, kind: type[_Record], subject: str) -> _Record:
    """Read a record.

    Args:
        raw: The file's bytes.
        kind: The record that the file must hold.
        subject: The file, for the error.

    Raises:
        Malformed: The bytes aren't the one valid form; ``detail`` is ``format`` for another format's record, else
            ``record``. The file is left as it is.
    """
    if len(raw) > MAX_RECORD:
        raise _malformed(f"a record has at most {MAX_RECORD} bytes, this one {len(raw)}", subject)
    try:
        record = msgspec.json.decode(raw, type=kind)
        canonical = msgspec.json.format(raw, indent=-1) == msgspec.json.encode(record)
    except _JSON_FAULTS as error:
        older = _older(raw)
        if older is not None:
            raise Malformed(
                f"written in {older}, and only format {FORMAT} of this store is read",
                subject=subject,
                hint="stop every sandbox with the version that wrote it first; nothing is migrated",
                detail="format",
            ) from None
        # The decoder's texts can quote the input at length.
        raise _malformed(f"not a valid record: {str(error)[:200]}", subject) from None
    if not canonical:
        raise _malformed("not a valid record: a field is duplicated, out of order, null or needlessly escaped", subject)
    return record


def encode(record: Journal | RuntimeRecord, subject: str) -> bytes:
    """Return the file text of a record: two-space indent, declared order, final newline.

    Raises:
        Malformed: The record holds what could not be read back; nothing is written then.
    """
    try:
        text = msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"
    except _JSON_FAULTS as error:
        raise _malformed(f"can't be written as a record: {error}", subject) from None
    decode(text, type(record), subject)
    return text


def _older(raw: bytes) -> str | None:
    """Return the name of another format, if it is a record of one."""
    try:
        found = msgspec.json.decode(raw, type=_Versioned)
    except _JSON_FAULTS:
        return None
    if found.format != FORMAT:
        return f"format {found.format}"
    # The store before this one counted from 1 as well, and had the process number at the top.
    return None if found.pid is None else "the format of an earlier store"


def _malformed(reason: str, subject: str) -> Malformed:
    return Malformed(reason, subject=subject, hint=WAY_OUT, detail="record")
