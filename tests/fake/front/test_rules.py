"""One row per rule of contract openvmm 1 and 2: every row is a real process."""

from __future__ import annotations

import pytest

from tests.fake.front import rows_cmdline, rows_devices, rows_general, rows_network, rows_shares
from tests.support.openvmm_rows import Row, check
from tests.support.openvmm_stand import Stand

TABLES = (rows_general, rows_devices, rows_network, rows_shares, rows_cmdline)
RULES = {rule: sentence for table in TABLES for rule, sentence in table.RULES.items()}
ROWS = [row for table in TABLES for row in table.ROWS]


@pytest.mark.parametrize("row", ROWS, ids=[f"{row.rule} [{row.changes[:80]}]" for row in ROWS])
def test_a_rule(row: Row, stand: Stand) -> None:
    check(row, stand)


def test_every_rule_has_a_row() -> None:
    assert {row.rule for row in ROWS} == set(RULES)
