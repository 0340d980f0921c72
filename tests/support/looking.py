"""What reattach and a look without the lock find, with what each must leave as it is."""

from __future__ import annotations

import pytest

from nvx_ref import errors
from nvx_ref.store import RuntimeIdentity, RuntimeRecord
from nvx_ref.store.names import LOCK, LOG
from nvx_ref.supervisor import Exited, Indeterminate, Live, Mismatched, Verdict, inspect, reattach
from sandboxes import IDENTITY, NAME, Site, soon

STOPPED = {"config.json", LOCK, LOG}


def looked(site: Site, identity: RuntimeIdentity = IDENTITY) -> Verdict:
    """Look without the lock, which must change nothing."""
    before = {path.name: path.stat() for path in site.path().iterdir()}
    steps = list(site.steps)
    found = inspect(site.store, NAME, identity)
    if isinstance(found, Live | Mismatched):
        found.vmm.close()
    after = {path.name: path.stat() for path in site.path().iterdir()}
    assert {name: (s.st_ino, s.st_mtime_ns) for name, s in after.items()} == {
        name: (s.st_ino, s.st_mtime_ns) for name, s in before.items()
    }
    assert site.steps == steps
    return found


def found_by(site: Site, identity: RuntimeIdentity = IDENTITY) -> Verdict:
    with site.lock() as locked:
        found = reattach(locked, identity, deadline=soon())
        if isinstance(found, Live | Mismatched):
            found.vmm.close()
        return found


def exited(site: Site, record: RuntimeRecord | None) -> Exited:
    before = looked(site)
    assert isinstance(before, Exited), before
    found = found_by(site)
    assert isinstance(found, Exited), found
    assert before.record == found.record == record
    assert site.listing() == STOPPED
    return found


def unknown(site: Site, detail: str, *, when_looked: str | None = None) -> Indeterminate:
    before = looked(site)
    assert isinstance(before, Indeterminate), before
    assert before.detail == (when_looked or detail)
    contents = {path.name: path.read_bytes() for path in site.path().iterdir() if path.is_file()}
    found = found_by(site)
    assert isinstance(found, Indeterminate), found
    assert (found.detail, bool(found.reason)) == (detail, True)
    assert {path.name: path.read_bytes() for path in site.path().iterdir() if path.is_file()} == contents
    with site.lock() as locked, pytest.raises(errors.NvxError):
        locked.remove()
    return found
