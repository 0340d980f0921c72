"""Where a guest sees what a Windows host maps: by text alone, so that every system can judge it."""

from __future__ import annotations

import pytest

from nvx_ref.errors import Refused
from nvx_ref.plan.hostpaths import within_guest
from nvx_ref.platform.guestpaths import below_drives


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("C:\\a", "/mnt/c/a"),
        ("c:\\A b\\c", "/mnt/c/A b/c"),
        ("\\\\?\\D:\\long", "/mnt/d/long"),
    ],
)
def test_a_path_on_a_drive_is_below_it_in_the_guest(path: str, expected: str) -> None:
    assert below_drives(path) == expected


@pytest.mark.parametrize(
    "path", ["\\\\server\\share\\a", "\\\\?\\UNC\\server\\share\\a", "\\\\.\\pipe\\a", "\\a", "a", "é:\\a", "1:\\a"]
)
def test_what_is_on_no_drive_is_refused_by_name(path: str) -> None:
    with pytest.raises(Refused) as refused:
        below_drives(path)
    assert (refused.value.subject, refused.value.detail) == (path, "volume")


def test_places_of_the_guest_are_compared_by_its_own_separator() -> None:
    assert within_guest("/in/a", "/in")
    assert within_guest("/in", "/in")
    assert not within_guest("/in\\a", "/in")
    assert not within_guest("/inside", "/in")
