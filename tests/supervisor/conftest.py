"""A site for each test."""

from __future__ import annotations

import pytest

import sandboxes
from nvx_ref.store.names import CAPABILITY, LOG
from sites import brief, provisioned, site
from system import SOCKETS

__all__ = ["brief", "provisioned", "site"]


@pytest.fixture
def recorded(provisioned: sandboxes.Site) -> sandboxes.Site:
    """A sandbox with the runtime files of a committed launch, but its record."""
    for name in (*SOCKETS, CAPABILITY, LOG, ".tmpAb3dE6"):
        provisioned.path(name).touch(0o600)
    return provisioned
