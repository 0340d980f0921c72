"""Fixtures of the front's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.openvmm_stand import Stand, made


@pytest.fixture
def stand() -> Iterator[Stand]:
    yield from made()
