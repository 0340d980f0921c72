"""What of a launch goes once its VMM has verifiably exited, and in which order.

The journal and the runtime record are what a later recovery goes by, so they go last: a crash between any two
deletions leaves a record whose process has exited, never a VMM without a record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nvx_ref.store import names

if TYPE_CHECKING:
    from nvx_ref.platform import files

OF_A_LAUNCH = (names.SOCKET, names.CAPABILITY)
"""What a VMM needs while it runs. Its log and its report stay, for people and for the next start to replace."""

OF_A_RUN = (names.OUTCOME, names.CONSOLE)
"""What a VMM leaves to be read, until the next launch."""


def remove_staged(directory: files.Directory) -> None:
    """Remove what the VMM staged and never published, and records cut short before their rename (620.scope6.m).

    Only the holder of the lock writes records, so a temporary that it finds is nobody's.
    """
    for name in directory.names():
        if names.is_staging(name) or names.is_temporary(name):
            directory.remove(name)


def remove_stale(directory: files.Directory) -> None:
    """Remove what an earlier launch left, before a new one begins."""
    remove_staged(directory)
    for name in (*OF_A_LAUNCH, *OF_A_RUN):
        directory.remove(name)


def clear_launch(directory: files.Directory, *records: str) -> None:
    """Remove an exited VMM's runtime files, then its records in the given order."""
    remove_staged(directory)
    for name in (*OF_A_LAUNCH, *records):
        directory.remove(name)
