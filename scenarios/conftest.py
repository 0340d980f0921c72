"""Marks every scenario by the table in `contract.py`."""

from __future__ import annotations

import pytest

from scenarios.contract import MARKERS


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the scenarios of this directory; one whose module is in no table isn't a scenario, and is an error."""
    for item in items:
        module = getattr(item, "module", None)
        name = str(getattr(module, "__name__", "")).rpartition(".")
        if name[0].rpartition(".")[2] == "scenarios":
            if name[2] not in MARKERS:
                raise pytest.UsageError(f"{item.nodeid}: its module isn't in scenarios/contract.py")
            item.add_marker(MARKERS[name[2]])
