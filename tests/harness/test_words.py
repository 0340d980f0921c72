"""Commands as words by the rules of Windows' C runtime, on every system; there, by what the system itself says."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import python
from harness.words import as_powershell, split_as_runtime

WORDS = st.lists(st.text(st.sampled_from('ab \t\\"\u00e9'), max_size=8), min_size=1, max_size=5)

TOLD = [
    ("", []),
    (" \t ", []),
    (r"C:\Python\python.exe -I C:\tests\vmm.py", [r"C:\Python\python.exe", "-I", r"C:\tests\vmm.py"]),
    (r'"C:\Program Files\vmm.exe" --share C:\a\ -x', [r"C:\Program Files\vmm.exe", "--share", "C:\\a\\", "-x"]),
    (r'p \\server\share "\\server\a b\\"', ["p", r"\\server\share", "\\\\server\\a b\\"]),
    (r'p a\"b "a\\\"b" a\\\\"b c"d', ["p", 'a"b', r"a\"b", r"a\\b cd"]),
    ('p "a ""b"" c" "" a""b', ["p", 'a "b" c', "", "ab"]),
    ("p 'a b'", ["p", "'a", "b'"]),
]


@pytest.mark.parametrize(("text", "words"), TOLD)
def test_a_command_is_split_as_its_program_would(text: str, words: list[str]) -> None:
    assert split_as_runtime(text) == words


@given(WORDS)
def test_what_was_joined_is_split_into_the_same_words(words: list[str]) -> None:
    assert split_as_runtime(subprocess.list2cmdline(words)) == words


@pytest.mark.parametrize("text", ['p "a', r'p "a\"', '"'])
def test_a_quotation_without_an_end_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="quotation"):
        split_as_runtime(text)


@pytest.mark.skipif(sys.platform != "win32", reason="asks a program what its C runtime made of a text")
def test_a_started_program_has_the_same_words() -> None:
    print_words = "import sys, json; print(json.dumps(sys.argv[1:]))"
    start = subprocess.list2cmdline([python.interpreter(), "-I", "-c", print_words])
    for text, words in TOLD:
        done = subprocess.run(f"{start} {text}", stdout=subprocess.PIPE, check=True)
        assert json.loads(done.stdout) == words


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["nvx-ref", "start", "--state-dir", r"C:\a\b"], r"nvx-ref start --state-dir C:\a\b"),
        ([r"C:\Program Files\nvx-ref.exe", "stop"], r"& 'C:\Program Files\nvx-ref.exe' stop"),
        (["p", "it's", "$x", "", "--", "/bin/sh"], "p 'it''s' '$x' '' -- /bin/sh"),
        (["p", "a,b", "{}", "caf\u00e9"], "p 'a,b' '{}' 'caf\u00e9'"),
    ],
)
def test_a_command_is_one_line_of_powershell(words: list[str], line: str) -> None:
    assert as_powershell(words) == line
