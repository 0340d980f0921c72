"""What a sandbox's directory says, read without changing anything."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nvx_ref.closing import Closing
from nvx_ref.errors import Malformed
from nvx_ref.store import claim, names
from nvx_ref.store.records import MAX_CONFIGURATION, MAX_RECORD, Journal, RuntimeRecord, decode

if TYPE_CHECKING:
    from nvx_ref.platform import files
    from nvx_ref.platform.contract import FileId
    from nvx_ref.store.claim import Claim
    from nvx_ref.store.names import CallerFiles

CAPABILITY_SIZE = 32
"""The capability's length in bytes."""


class Reader(Closing):
    """An open sandbox directory. Without the lock, what it tells may have changed by the next look.

    A context manager; made by :meth:`nvx_ref.store.Store.peek`.

    Args:
        directory: The directory, which the reader owns.
        caller: The caller's files.
    """

    def __init__(self, directory: files.Directory, caller: CallerFiles) -> None:
        self.directory = directory
        self.caller = caller

    def close(self) -> None:
        """Let go of the directory; idempotent."""
        self.directory.close()

    @property
    def path(self) -> str:
        """The directory's absolute path: the VMM's working directory."""
        return self.directory.path

    def path_of(self, name: str) -> str:
        """Return the path of a name in the directory, for messages and a VMM's arguments."""
        return os.path.join(self.directory.path, name)

    def read_configuration(self) -> bytes | None:
        """Return the caller's configuration record, None if the sandbox isn't provisioned.

        Raises:
            Malformed: It is over :data:`MAX_CONFIGURATION` bytes.
            Refused: It isn't a plain file of this user's, or can't be read.
        """
        return self.directory.read(self.caller.configuration, MAX_CONFIGURATION)

    def journal(self) -> Journal | None:
        """Return the launch that was begun and not finished, None only if there is none.

        Raises:
            Malformed: ``launch.json`` is damaged, or of another format. It is kept.
            Refused: It isn't a plain file of this user's, or can't be read.
        """
        raw = self.directory.read(names.JOURNAL, MAX_RECORD)
        return None if raw is None else decode(raw, Journal, self.path_of(names.JOURNAL))

    def runtime(self) -> RuntimeRecord | None:
        """Return the record of the committed launch, None only if there is none.

        Raises:
            Malformed: ``runtime.json`` is damaged, or of another format. It is kept.
            Refused: It isn't a plain file of this user's, or can't be read.
        """
        raw = self.directory.read(names.RUNTIME, MAX_RECORD)
        return None if raw is None else decode(raw, RuntimeRecord, self.path_of(names.RUNTIME))

    def read_capability(self) -> bytes | None:
        """Return the capability of the newest launch, None if there is none.

        Raises:
            Malformed: It isn't 32 bytes, or all of them are zero.
            Refused: It isn't a plain file of this user's, or can't be read.
        """
        raw = self.directory.read(names.CAPABILITY, CAPABILITY_SIZE)
        if raw is not None and (len(raw) != CAPABILITY_SIZE or not any(raw)):
            raise Malformed(
                f"a capability is {CAPABILITY_SIZE} bytes, not all zero",
                subject=self.path_of(names.CAPABILITY),
                hint="stop the sandbox by force and start it again",
                detail="capability",
            )
        return raw

    def read_outcome(self) -> bytes | None:
        """Return the report that the VMM of the last launch published, None if it published none.

        Raises:
            Malformed: It is over :data:`MAX_RECORD` bytes.
            Refused: It isn't a plain file of this user's, or can't be read.
        """
        return self.directory.read(names.OUTCOME, MAX_RECORD)

    def look_at_claim(self, log: FileId) -> Claim:
        """Look once at the claim on a recorded log."""
        return claim.look(self.directory, log)
