"""What all tests share: the profile of the property tests. The markers that tests carry come from the plugin."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# No example database: the tests also run from a tree that this user can't write to. And no example is judged by how
# long it took: the machine may be busy.
settings.register_profile(
    "nvx", database=None, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("nvx")
