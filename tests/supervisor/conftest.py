"""A site for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import sandboxes
from nvx_ref.store import claim
from nvx_ref.store.names import CAPABILITY, LOG
from system import SOCKETS


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
    monkeypatch.setattr(claim, "CLAIM_WAIT", 0.1)


@pytest.fixture
def recorded(provisioned: sandboxes.Site) -> sandboxes.Site:
    """A sandbox with the runtime files of a committed launch, but its record."""
    for name in (*SOCKETS, CAPABILITY, LOG, ".tmpAb3dE6"):
        provisioned.path(name).touch(0o600)
    return provisioned
