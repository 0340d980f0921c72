"""Markers that every test may carry."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "case(id): the case of contract/test-cases.md that the test replays")
    config.addinivalue_line("markers", "spec(id): the clause of the specification that the test shows")
