"""One family of errors, with codes that never change.

Every failure that a caller can meet is an :class:`NvxError`. Its ``code`` is stable (programs match on it), its
text is one line for a person: which file or option, why, and what to do. Unknown states are an error of their own,
:class:`Indeterminate`: never rounded to "exited", never to "live".
"""

from __future__ import annotations

from typing import ClassVar


class NvxError(Exception):
    """The base of the family.

    Args:
        reason: Why it failed, as a clause without a final full stop.
        subject: The file, option, process or sandbox that it is about, if there is one.
        hint: What the reader can do, as a clause.
        detail: A stable slug that tells cases of one code apart, for example ``launch-unfinished``.
    """

    code: ClassVar[str] = "NvxError"

    def __init__(
        self, reason: str, *, subject: str | None = None, hint: str | None = None, detail: str | None = None
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.subject = subject
        self.hint = hint
        self.detail = detail

    def __str__(self) -> str:
        text = f"{self.subject}: {self.reason}" if self.subject else self.reason
        if self.hint:
            text = f"{text}; {self.hint}"
        # One line whatever a file name holds: a report, a log and a terminal are read line by line.
        return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.reason, self.subject, self.hint, self.detail), self.__dict__)


def _rebuild(kind: type[NvxError], reason: str, subject: str | None, hint: str | None, detail: str | None) -> NvxError:
    error = kind.__new__(kind)
    NvxError.__init__(error, reason, subject=subject, hint=hint, detail=detail)
    return error


class NotFound(NvxError):  # noqa: N818 - the specification's names
    """The sandbox, file or record isn't there."""

    code = "NotFound"


class Busy(NvxError):  # noqa: N818
    """Another transition or session holds what this one needs, and the deadline passed."""

    code = "Busy"


class AlreadyExists(NvxError):  # noqa: N818
    """The sandbox is provisioned, or its VMM runs, already."""

    code = "AlreadyExists"


class Malformed(NvxError):  # noqa: N818
    """A record, image, message or value doesn't have its one valid form."""

    code = "Malformed"


class Refused(NvxError):  # noqa: N818
    """The request is understood and not allowed."""

    code = "Refused"


class ForeignEntries(NvxError):  # noqa: N818
    """A directory holds names that nobody declared; nothing was deleted.

    Args:
        names: The undeclared names, sorted.
    """

    code = "ForeignEntries"

    def __init__(
        self,
        reason: str,
        *,
        names: tuple[str, ...] = (),
        subject: str | None = None,
        hint: str | None = None,
        detail: str | None = None,
    ) -> None:
        super().__init__(reason, subject=subject, hint=hint, detail=detail)
        self.names = names


class TimedOut(NvxError):  # noqa: N818
    """The deadline passed; what was asked for may still happen."""

    code = "TimedOut"


class Indeterminate(NvxError):  # noqa: N818
    """Whether a VMM runs can't be proven either way; every record is kept."""

    code = "Indeterminate"


class Mismatched(NvxError):  # noqa: N818
    """The VMM runs, with another runtime identity than this orchestrator's.

    Args:
        parts: The parts of the runtime identity that differ, in their fixed order.
    """

    code = "Mismatched"

    def __init__(
        self,
        reason: str,
        *,
        parts: tuple[str, ...] = (),
        subject: str | None = None,
        hint: str | None = None,
        detail: str | None = None,
    ) -> None:
        super().__init__(reason, subject=subject, hint=hint, detail=detail)
        self.parts = parts


class LaunchFailed(NvxError):  # noqa: N818
    """The VMM was not started, or ended before it was ready.

    Args:
        category: The outcome report's category, where the VMM published one; else the word of a guest that refused.
        status: The outcome report's status code, where the VMM published one; else the refusing guest's.
    """

    code = "LaunchFailed"

    def __init__(
        self,
        reason: str,
        *,
        category: str | None = None,
        status: int | None = None,
        subject: str | None = None,
        hint: str | None = None,
        detail: str | None = None,
    ) -> None:
        super().__init__(reason, subject=subject, hint=hint, detail=detail)
        self.category = category
        self.status = status


class GuestRefused(Refused):
    """The guest refused a request in its own words. The session goes on.

    Args:
        category: The guest's word, also the ``detail``.
        status: Its errno-like status.
    """

    def __init__(
        self, reason: str, *, category: str, status: int, subject: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(reason, subject=subject, hint=hint, detail=category)
        self.category = category
        self.status = status


class SessionFailed(NvxError):  # noqa: N818
    """The control session broke its protocol, was refused, or ended."""

    code = "SessionFailed"


class VmmExited(NvxError):  # noqa: N818
    """The VMM that the operation needs has exited."""

    code = "VmmExited"
