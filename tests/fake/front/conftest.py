"""Fixtures of the front's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.openvmm_channel import Channel
from tests.support.openvmm_forks import Forks
from tests.support.openvmm_stand import Stand, made


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    made_forks = Forks()
    yield made_forks
    made_forks.close()


@pytest.fixture
def stand() -> Iterator[Stand]:
    yield from made()


@pytest.fixture
def channel(stand: Stand) -> Iterator[Channel]:
    made_channel = Channel(stand.path)
    yield made_channel
    made_channel.close()
