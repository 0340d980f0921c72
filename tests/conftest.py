"""What all tests share: the profile of the property tests. The markers that tests carry come from the plugin."""

from __future__ import annotations

from hypothesis import settings

# No example database: the tests also run from a tree that this user can't write to.
settings.register_profile("nvx", database=None)
settings.load_profile("nvx")
