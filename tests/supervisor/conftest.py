"""A site for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import sandboxes


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
