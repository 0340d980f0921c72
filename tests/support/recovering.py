"""What recovery finds, with what each finding must leave as it is."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

import pytest

from nvx_ref.deadline import POLL_INTERVAL, Deadline
from nvx_ref.errors import Indeterminate, NvxError, Refused
from nvx_ref.platform import process
from nvx_ref.platform.contract import FileId
from nvx_ref.store import ProcessIdentity, Recovered, claim
from nvx_ref.store.names import JOURNAL, LOCK, LOG
from sandboxes import Site, claimed

STOPPED = {"config.json", LOCK, LOG}
LAUNCH_ID = "a" * 32


def recovered(site: Site, kind: Recovered, identity: ProcessIdentity | None) -> None:
    with site.lock() as locked:
        recovery = locked.recover()
        assert (recovery.kind, recovery.launch_id, recovery.process) == (kind, LAUNCH_ID, identity)
        assert locked.journal() is None
    assert site.listing() == {*STOPPED, "outcome.json"}


def kept(site: Site, detail: str) -> Indeterminate:
    before = {name: site.path(name).read_bytes() for name in site.listing()}
    with site.lock() as locked, pytest.raises(Indeterminate) as caught:
        locked.recover(deadline=Deadline.after(1))
    assert caught.value.detail == detail
    assert caught.value.subject == str(site.path(JOURNAL))
    assert {name: site.path(name).read_bytes() for name in site.listing()} == before
    return caught.value


@contextmanager
def fork_window(site: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hold the claim until it has been looked at for the third time."""
    again, taken = threading.Event(), threading.Event()
    look = claim.look
    looks = 0

    def counted(*arguments: object) -> claim.Claim:
        nonlocal looks
        looks += 1
        if looks == 3:
            again.set()
        return look(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(claim, "look", counted)

    def hold() -> None:
        with claimed(site.path(LOG)):
            taken.set()
            again.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert taken.wait(120)
        yield
        assert again.is_set()
    finally:
        # Of one that didn't look so often nothing more is to be waited for.
        again.set()
        thread.join()


class Looks(Deadline):
    """A deadline that passes after so many looks, however long each of them takes."""

    __slots__ = ("_left",)

    def __init__(self, count: int) -> None:
        super().__init__(math.inf)
        self._left = count

    def sooner(self, seconds: float) -> Self:
        del seconds
        return self

    def pause(self, seconds: float = POLL_INTERVAL) -> bool:
        del seconds
        self._left -= 1
        return self._left > 0


class Scripted:
    """A process reference that plays a part."""

    def __init__(
        self, *, exits: bool = True, refuses: bool = False, has_log: bool | NvxError = True, exited: bool = False
    ) -> None:
        self.identity = process.own_identity()
        self.exits, self.refuses, self.has_log, self.exited = exits, refuses, has_log, exited
        self.terminated = self.closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def terminate(self) -> bool:
        if self.refuses:
            raise Refused("not permitted")
        self.terminated = True
        return True

    def wait(self, _: Deadline) -> bool:
        return self.exits

    def has_exited(self) -> bool:
        return self.exited

    def holds_output(self, _: FileId) -> bool:
        if isinstance(self.has_log, NvxError):
            raise self.has_log
        return self.has_log

    def close(self) -> None:
        self.closed = True
