"""A command as one text and as words, by the rules of the C runtime."""

from __future__ import annotations

import pytest

import wine

wine.only_windows()

from nvx_ref.platform.windows import commandline


@pytest.mark.parametrize(
    "argv",
    [
        ["p"],
        ["C:\\a b\\p.exe", "", 'x"y', "\\", "a\\\\", 'a\\"b', "tail\\", "two words\\", "tab\there"],
        ["p", '"', '""', "\\\\\\", 'a\\\\"', " "],
    ],
)
def test_a_command_is_split_into_the_words_that_it_was_joined_from(argv: list[str]) -> None:
    assert commandline.split(" ".join(commandline.quote(word) for word in argv)) == argv


def test_two_marks_inside_a_quotation_are_one_of_the_word() -> None:
    assert commandline.split('p "a ""b"" c" "" a""b') == ["p", 'a "b" c', "", "ab"]


def test_a_quotation_without_an_end_is_refused() -> None:
    with pytest.raises(ValueError, match="quotation"):
        commandline.split('p "a')
