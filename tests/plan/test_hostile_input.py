"""Readers take anything: a value, or an error of the family in one line; nothing else, and no unbounded memory."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hostile_readers import READERS, give, seeds

ROOT = Path(__file__).resolve().parents[2]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=6,
)
NEAR = st.sampled_from(
    ["mode", "allow", "deny", "cidr", "except", "ports", "readonlyPaths", "version", "format", "plan"]
)
TEXTS = st.text(alphabet="0123456789abcdef.:/,-tcpudpicmrow \0\n\u00e9", max_size=40).map(str.encode)
INPUTS = (
    st.binary(max_size=300)
    | TEXTS
    | st.dictionaries(NEAR, JSON, max_size=4).map(lambda value: json.dumps(value).encode())
)


@settings(max_examples=120, deadline=None)
@given(name=st.sampled_from(sorted(READERS)), data=INPUTS)
@example(name="plan", data=b"[" * 100_000)
@example(name="policy", data=b"[" * 100_000)
@example(name="policy", data=b'{"mode":"allow","mode":"deny"}')
@example(name="policy", data=b'{"mode":"deny","proxy":' + b"9" * 5000 + b"}")
@example(name="rule", data=b"1.2.3.4:tcp:" + b"9" * 5000)
@example(name="mappings", data=b'{"readonlyPaths":["\\ud800"]}')
@example(name="share", data=b"/a,/b\xff")
@example(name="share", data=b"/a,/b\0")
def test_hostile_input_gives_a_typed_error(name: str, data: bytes) -> None:
    give(name, data)


@pytest.mark.parametrize("name", ["policy", "plan", "configuration", "report"])
def test_a_huge_document_costs_what_it_weighs(name: str) -> None:
    data = b'{"mode":"allow","allow":[' + b",".join([b'{"cidr":"10.0.0.0/8"}'] * 20_000) + b"]}"
    tracemalloc.start()
    try:
        give(name, data)
        assert tracemalloc.get_traced_memory()[1] < 64 * len(data)
    finally:
        tracemalloc.stop()


def test_a_rule_with_absurd_exceptions_stays_small() -> None:
    rule = {"cidr": "::/0", "except": [f"2001:db8:{number:x}::/128" for number in range(200)]}
    give("policy", json.dumps({"mode": "deny", "allow": [rule] * 50}).encode())


def test_the_nightly_fuzzer_has_a_target_for_every_reader() -> None:
    run = subprocess.run(
        [sys.executable, ROOT / "ci" / "fuzz.py", "--list"], capture_output=True, text=True, check=True
    )
    assert run.stdout.split("\n")[:-1] == sorted(READERS)


@pytest.mark.parametrize("name", sorted(READERS))
def test_what_a_fuzzer_begins_with_is_taken(name: str) -> None:
    begin = seeds(name)[1:]
    assert begin
    for data in begin:
        READERS[name](data)


def test_the_nightly_fuzzer_reports_and_keeps_what_it_finds(tmp_path: Path) -> None:
    """Where the package is missing that guides it, as here by a stub of the search for it."""
    script = tmp_path / "run.py"
    script.write_text(
        f"import importlib.util, sys\nsys.path.insert(0, {str(ROOT / 'ci')!r})\n"
        "import fuzz, hostile_readers\n"
        f"fuzz.FINDINGS = fuzz.Path({str(tmp_path)!r}) / 'found'\n"
        "fuzz.importlib.util.find_spec = lambda name: None\n"
        "def broken(data):\n    if len(data) > 3: raise IndexError('a fault')\n"
        "readers = hostile_readers.READERS\nreaders.clear()\n"
        "readers['forward'] = broken\nreaders['proxy'] = len\n"
        "sys.exit(fuzz.main(['--all', '1']))\n"
    )
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert run.returncode == 1, run.stderr
    said, bad, good = run.stdout.splitlines()
    assert said.startswith("at random: ")
    (kept,) = (tmp_path / "found").iterdir()
    assert bad == f"FAIL forward: IndexError: a fault; kept as {kept}"
    assert good.startswith("ok   proxy: ")
