"""The process witness: which VMMs run, found without asking the orchestrator and without any environment variable.

A process is a VMM of this test if one of its arguments is exactly the test's launcher, if it said the test's token on
the channel, or if it holds the claim on a sandbox's log. Orphans come to this process (a subreaper) and are known by
that. Everything seen is held by a pin from then on, so that its end is an event and its number can't deceive.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.deadline import until
from harness.errors import Finding, Late, is_finding

if TYPE_CHECKING:
    from collections.abc import Iterable

    from harness.deadline import Deadline
    from harness.witness.contract import Host, Pin, Stat

__tracebackhide__ = is_finding

OUTPUTS = (1, 2)
"""The descriptors of a process's output."""

SHOWN_WORDS = 4
"""How many words of its command a text shows: interpreter, option, launcher and one more."""


@dataclass(slots=True, repr=False)
class Seen:
    """A process that a witness has seen.

    Attributes:
        pin: It, held.
        arguments: Its arguments at the first look.
        reasons: How it was found: ``launcher``, ``token``, ``claim``, ``child of a VMM``, ``adopted``.
        outputs: Device and inode of what its standard output and error went to when it was first seen.
        status: With what it has ended, negative for a signal; None where that isn't known.
        left: Whether it had to be ended when its test was over.
    """

    pin: Pin
    arguments: list[str]
    reasons: set[str] = field(default_factory=set[str])
    outputs: tuple[tuple[int, int], ...] = ()
    status: int | None = None
    left: bool = False

    @property
    def is_vmm(self) -> bool:
        """Whether it is a VMM itself, not something that a VMM started."""
        return bool(self.reasons & {"launcher", "token", "claim"}) and "child of a VMM" not in self.reasons

    def __str__(self) -> str:
        # Control characters are shown; a backslash is a part of every path on Windows, and stays itself.
        shown = " ".join(self.arguments[:SHOWN_WORDS]).encode("unicode_escape").decode().replace("\\\\", "\\")
        return f"pid {self.pin.pid} ({', '.join(sorted(self.reasons))}): {shown}"

    __repr__ = __str__


class Processes:
    """All processes of one test.

    Args:
        host: The operating system's half.
        needle: The argument that only VMMs of this test have: the launcher's path, or the state root for a real VMM.
        token: The token of the test, found anywhere in an argument.
        root: Where the sandboxes' directories are: whoever holds the claim on a log there is a VMM.
    """

    def __init__(self, host: Host, *, needle: str, token: str, root: str) -> None:
        self._host = host
        self._needle = needle
        self._token = token
        self._root = root
        self._seen: dict[tuple[int, int], Seen] = {}
        self._own: set[tuple[int, int]] = set()
        host.adopt_orphans()
        # What started before the test isn't the test's: a look has no need to read more of it than that.
        self._since = host.now()
        self.own(os.getpid())
        table = host.stats(self._since)
        self._before = host.adopted(table).intersection(self._ours(table))

    def own(self, pid: int) -> None:
        """Name a child that the harness started itself: an orchestrator, a command. It is no orphan and no VMM.

        It is told by its start too: once it has ended, its number may be a VMM's.
        """
        stat = self._host.stat(pid)
        if stat is not None:
            self._own.add((pid, stat.start))

    def said(self, pid: int, pin: Pin, reason: str) -> None:
        """Take a process that said the token on the channel."""
        known = self._seen.get((pid, pin.start))
        if known is not None:
            pin.close()
            known.reasons.add(reason)
            return
        self._seen[pid, pin.start] = Seen(pin, self._host.arguments(pid), {reason}, self._outputs(pid))

    def look(self) -> list[Seen]:
        """Look at the whole process table now; return those of this test that are alive, reaping the rest."""
        everything = self._host.stats(self._since)
        found = self._ours(everything)
        adopted = self._host.adopted(everything) - self._before
        claims = self._claims(found)
        table = {pid: self._host.arguments(pid) for pid in found}
        vmms = {pid for pid, arguments in table.items() if self._needle in arguments or pid in claims}
        # One that is ending has no arguments any more while its worker still has the log.
        parents = vmms | {one.pin.pid for one in self._seen.values() if one.is_vmm and not one.pin.has_exited()}
        for pid in vmms:
            reason = "launcher" if self._needle in table[pid] else "claim"
            below = found[pid].parent in parents
            self._note(found[pid], table[pid], reason, *(["child of a VMM"] if below else []))
        for pid, arguments in table.items():
            if any(self._token in word for word in arguments):
                self._note(found[pid], arguments, "bears the token")
            if pid in adopted:
                self._note(found[pid], arguments, "adopted")
        return self.alive()

    def alive(self) -> list[Seen]:
        """Return what was seen at any look and hasn't exited."""
        found: list[Seen] = []
        for one in self._seen.values():
            if one.pin.has_exited():
                _reap(one)
            else:
                found.append(one)
        return sorted(found, key=lambda one: (one.pin.start, one.pin.pid))

    def ever(self) -> list[Seen]:
        """Return everything that was seen at any look, in the order of the starts."""
        return sorted(self._seen.values(), key=lambda one: (one.pin.start, one.pin.pid))

    def vmms(self) -> list[Seen]:
        """Look now, and return the VMMs that are alive."""
        return [one for one in self.look() if one.is_vmm]

    def one(self, where: str) -> Seen:
        """Look now and return the one VMM that must be alive.

        Raises:
            Finding: There is none, or more than one.
        """
        found = self.vmms()
        if len(found) != 1:
            raise Finding(where, expected="exactly one VMM alive", found=described(found))
        return found[0]

    def worker(self, where: str) -> Seen:
        """Look now and return the one process that a VMM must have started.

        Raises:
            Finding: There is none, or more than one.
        """
        found = [one for one in self.look() if "child of a VMM" in one.reasons]
        if len(found) != 1:
            raise Finding(where, expected="exactly one child of a VMM alive", found=described(found))
        return found[0]

    def none(self, where: str, deadline: Deadline) -> None:
        """Wait until no VMM is alive, nor a worker that it ran its guest in, which may need a moment more.

        Raises:
            Late: One still is at the deadline.
        """
        while found := [one for one in self.look() if one.is_vmm or "child of a VMM" in one.reasons]:
            if not found[0].pin.wait(deadline):
                raise Late(where, expected="no VMM alive", found=described(found), deadline=deadline)
            _reap(found[0])

    def forget(self) -> None:
        """Reap what has exited and let go of its pins: a long run has thousands of them."""
        self.alive()
        for key, one in [(key, one) for key, one in self._seen.items() if one.pin.has_exited()]:
            one.pin.close()
            del self._seen[key]

    def close(self) -> None:
        """Reap what has exited and let go of every pin."""
        self.alive()
        for one in self._seen.values():
            one.pin.close()
        self._seen.clear()
        self._host.let_go()

    def _note(self, stat: Stat, arguments: list[str], *reasons: str) -> None:
        pid = stat.pid
        pin = self._host.pin(pid)
        if pin is None:
            return
        known = self._seen.get((pid, pin.start))
        if known is not None:
            pin.close()
            known.reasons.update(reasons)
            return
        # Between the listing and the pin the number may have passed on: look again through the pin.
        if pin.start != stat.start or (not pin.has_exited() and self._host.arguments(pid) != arguments):
            pin.close()
            return
        self._seen[pid, pin.start] = Seen(pin, arguments, set(reasons), self._outputs(pid))

    def _outputs(self, pid: int) -> tuple[tuple[int, int], ...]:
        """Return what a process's output goes to."""
        return tuple((one.device, one.inode) for one in self._host.descriptors(pid) or () if one.number in OUTPUTS)

    def _ours(self, table: Iterable[Stat]) -> dict[int, Stat]:
        """Return every process that may be the test's, of those that started after it: none of the harness's own."""
        return {stat.pid: stat for stat in table if (stat.pid, stat.start) not in self._own}

    def _claims(self, among: Iterable[int]) -> set[int]:
        found: set[int] = set()
        for log in self._logs():
            try:
                status = os.stat(log, follow_symlinks=False)
            except OSError:
                continue
            if self._host.is_locked(log):
                found.update(self._host.holders(status.st_dev, status.st_ino, among))
        return found

    def _logs(self) -> list[str]:
        try:
            with os.scandir(self._root) as entries:
                return [os.path.join(entry.path, "openvmm.log") for entry in entries if entry.is_dir()]
        except OSError:
            return []


def _reap(one: Seen) -> None:
    """Take what has exited off the table, and keep what it ended with."""
    status = one.pin.reap()
    if one.status is None:
        one.status = one.pin.status() if status is None else status


def described(found: list[Seen]) -> str:
    """Return a list of processes as one clause."""
    return f"{len(found)}: " + "; ".join(str(one) for one in found) if found else "none"


def claim_is_held(host: Host, log: str, deadline: Deadline) -> bool:
    """Tell whether a log's claim is held; a held one is looked at again until the deadline.

    A process that another thread forks holds copies of every descriptor until its exec, so one look isn't enough.
    """
    return not until(lambda: host.is_locked(log) is not True, deadline)
