"""The outcome reports: the one that a VMM publishes as it ends (contract openvmm section 4), and that of an exec."""

from __future__ import annotations

import os
import stat
from typing import Literal

import msgspec

from nvx_ref.errors import Malformed, NotFound, Refused
from nvx_ref.platform.links import is_link


class Outcome(msgspec.Struct, frozen=True):
    """How a VMM's run ended, in its own words.

    Args:
        operation: ``run`` or ``managed``.
        category: ``success``, ``guest-exit``, ``vmm-failure`` or ``teardown-failure``.
        status_code: The status that goes with it.
    """

    operation: str
    category: str
    status_code: int


class _Report(msgspec.Struct, frozen=True):
    schema_version: Literal[1]
    outcome: Outcome
    network_policy: dict[str, object]
    teardown: dict[str, object]


def decode_outcome(raw: bytes, subject: str) -> Outcome:
    """Read a report; keys that a newer VMM adds are ignored.

    Args:
        raw: The file's bytes, bounded by whoever read it.
        subject: The file, for the error.

    Raises:
        Malformed: It isn't a report of schema 1.
    """
    try:
        return msgspec.json.decode(raw, type=_Report).outcome
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise Malformed(f"not an outcome report: {str(error)[:200]}", subject=subject, detail="report") from None


def encode_exec_report(category: str, status: int) -> bytes:
    """Return the report of one executed program (contract nvx-host 2.5).

    Args:
        category: How it ended.
        status: The status that goes with it.
    """
    report = {
        "schema_version": 1,
        "operation_id": os.urandom(16).hex(),
        "outcome": {"operation": "exec", "category": category, "status_code": status},
    }
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def check_destination(path: str) -> None:
    """Refuse a place where a report can't be published, before what it would be about.

    Raises:
        NotFound: The directory is missing.
        Refused: The directory is a link or none, or something has the name already (``detail="report"``).
    """
    directory = os.path.dirname(path) or os.curdir
    if "\0" in path or not os.path.basename(path):
        raise Refused("a file's path is needed", subject="--outcome-report", detail="report")
    try:
        found = os.lstat(directory)
    except OSError as error:
        raise NotFound("its directory is missing", subject=f"--outcome-report {path}", detail="report") from error
    if is_link(found) or not stat.S_ISDIR(found.st_mode):
        raise Refused("its directory isn't a real one", subject=f"--outcome-report {path}", detail="report")
    if os.path.lexists(path):
        raise _taken(path)


def publish(path: str, data: bytes) -> None:
    """Publish a report whole and without ever replacing anything: staged beside it, then linked.

    Raises:
        Refused: Something has the name by now, or it can't be written; nothing was replaced, and no staging file stays.
    """
    directory, name = os.path.split(path)
    staged = os.path.join(directory, f".{name}.{os.urandom(16).hex()}.tmp")
    try:
        fd = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.link(staged, path)
        finally:
            os.unlink(staged)
    except FileExistsError:
        raise _taken(path) from None
    except OSError as error:
        raise Refused(f"it can't be written: {error.strerror}", subject=path, detail="report") from error


def _taken(path: str) -> Refused:
    return Refused("it exists already", subject=f"--outcome-report {path}", hint="name a new file", detail="report")
