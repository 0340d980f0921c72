"""The small JSON reader and writer says what the json package says."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_openvmm.jsontext import decode, encode

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES)
def test_it_writes_and_reads_what_the_package_does(value: Any) -> None:
    assert json.loads(encode(value)) == value
    assert encode(value) == json.dumps(value)
    assert decode(f" {json.dumps(value, indent=1)}\n") == value


@pytest.mark.parametrize("text", ["", " ", "{", "[1,]", "nul", "{} {}", "'x'", '{"a" 1}', "01"])
def test_what_is_no_document_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode(text)


def test_names_that_are_not_utf8_survive() -> None:
    assert decode(encode("x\udcff")) == "x\udcff"
    assert encode("x\udcff") == '"x\\udcff"'


def test_what_has_no_form_is_refused() -> None:
    with pytest.raises(TypeError, match="bytes"):
        encode({"a": b"raw"})
    assert math.isclose(float(encode(0.1)), 0.1)
