"""Markers that every test may carry."""

from __future__ import annotations

import pytest
from hypothesis import settings

# How long an example takes says how busy the machine is, not whether the code is right.
settings.register_profile("house", deadline=None)
settings.load_profile("house")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "case(id): the case of contract/test-cases.md that the test replays")
    config.addinivalue_line("markers", "spec(id): the clause of the specification that the test shows")
