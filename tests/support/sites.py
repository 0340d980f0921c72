"""The fixtures of tests that have a store's root and stand-ins for its VMMs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import sandboxes
from nvx_ref.store import claim


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
