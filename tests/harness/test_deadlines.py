"""What a deadline says of itself: the seconds that were given, the scale included, never what a clock has measured."""

from __future__ import annotations

import pytest

from harness.deadline import Clock
from harness.errors import Gone, Late


@pytest.mark.parametrize(
    ("scale", "seconds", "shown"),
    [(1, 30, "30 s"), (0.3, 15, "4.5 s"), (0.1, 3, "0.3 s"), (1, 0.05, "0.05 s"), (120, 70, "8400 s")],
)
def test_a_text_gives_the_seconds_after_scaling(scale: float, seconds: float, shown: str) -> None:
    deadline = Clock(scale).after(seconds)
    error = Late("start", expected="an answer", found="nothing", deadline=deadline)
    assert str(error) == f"start: expected an answer within {shown}, found nothing"


def test_a_part_of_a_deadline_has_the_shorter_of_both() -> None:
    deadline = Clock(2).after(10)
    assert [str(deadline.within(seconds)) for seconds in (0.5, 60)] == ["0.5 s", "20 s"]


def test_what_can_not_happen_any_more_was_not_waited_for() -> None:
    assert str(Gone("start", expected="an answer", found="a corpse")) == "start: expected an answer, found a corpse"
