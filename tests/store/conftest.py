"""A site for each test."""

from __future__ import annotations

import pytest

import sandboxes
from nvx_ref.store.names import RUNTIME
from sites import brief, provisioned, site

__all__ = ["brief", "provisioned", "site"]


@pytest.fixture
def launched(provisioned: sandboxes.Site) -> sandboxes.Site:
    """A sandbox with the runtime files of a launch."""
    for name in ("control.sock", "control.capability", ".tmpAb3dE6", f".{RUNTIME}.{'0' * 32}.tmp", "outcome.json"):
        provisioned.path(name).write_text("x")
    return provisioned
