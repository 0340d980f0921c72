"""A site for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import sandboxes
from nvx_ref.store import claim
from nvx_ref.store.names import RUNTIME


@pytest.fixture
def site() -> Iterator[sandboxes.Site]:
    """A store's root with the lifeline of its stand-ins."""
    with sandboxes.site() as made:
        yield made


@pytest.fixture
def provisioned(site: sandboxes.Site) -> sandboxes.Site:
    """A site whose sandbox is provisioned."""
    site.provision()
    site.steps.clear()
    return site


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at a held claim again for a tenth of a second only."""
    monkeypatch.setattr(claim, "CLAIM_WAIT", 0.1)


@pytest.fixture
def launched(provisioned: sandboxes.Site) -> sandboxes.Site:
    """A sandbox with the runtime files of a launch."""
    for name in ("control.sock", "control.capability", ".tmpAb3dE6", f".{RUNTIME}.{'0' * 32}.tmp", "outcome.json"):
        provisioned.path(name).write_text("x")
    return provisioned
