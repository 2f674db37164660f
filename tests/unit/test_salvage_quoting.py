"""Text of others in the SQL files of salvage: printable ASCII that says exactly that text, and nothing else."""

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.tiers import every
from walproof.salvaging.quoting import Quoting, UnquotableError, is_operator, plain_table

LETTERS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


def read_value(said: str) -> str:
    """As PostgreSQL reads a literal (scan.l): a simple one, or one with escapes."""
    if said.startswith("'"):
        assert "\\" not in said, "under standard_conforming_strings = off it would escape"
        return said[1:-1].replace("''", "'")
    escapes = {"n": "\n", "t": "\t", "\\": "\\"}
    text = re.fullmatch(r"E'(.*)'", said)
    assert text is not None
    pattern = r"\\u([0-9A-F]{4})|\\U([0-9A-F]{8})|\\(.)|(')'"

    def letter(one: re.Match[str]) -> str:
        code = one[1] or one[2]
        return chr(int(code, 16)) if code else escapes[one[3]] if one[3] else one[4]

    return re.sub(pattern, letter, text[1])


def read_name(said: str) -> str:
    """As PostgreSQL reads an identifier."""
    is_escaped, text = said.startswith("U&"), said.removeprefix("U&")[1:-1].replace('""', '"')
    if not is_escaped:
        return text
    pattern = r"\\([0-9A-F]{4})|\\\+([0-9A-F]{6})|\\\\"
    return re.sub(pattern, lambda one: chr(int(one[1] or one[2], 16)) if one[1] or one[2] else "\\", text)


def is_closed(said: str, quote: str) -> bool:
    """Whether the quote that opens it is the one at its end."""
    inner = said[said.index(quote) + 1 : -1].replace("\\\\", "").replace(quote * 2, "")
    return said.endswith(quote) and quote not in inner and re.fullmatch("[ -~]*", said) is not None


@given(LETTERS)
def test_a_value_is_read_as_it_is(text: str) -> None:
    said = Quoting().value(text)
    assert read_value(said) == text and is_closed(said, "'")


@given(LETTERS.filter(bool))
def test_a_name_is_read_as_it_is(text: str) -> None:
    said = Quoting().name(text)
    assert read_name(said) == text and is_closed(said, '"')


@given(LETTERS)
def test_in_sql_ascii_a_value_is_its_bytes(text: str) -> None:
    said = Quoting(is_sql_ascii=True).value(text)
    as_bytes = re.sub(r"\\\\|\\x([0-9A-F]{2})", lambda one: chr(int(one[1], 16)) if one[1] else one[0], said)
    assert is_closed(said, "'") and read_value(as_bytes) == text.encode().decode("latin-1")


def test_what_can_be_said_by_nothing_is_known_before() -> None:
    def unquotable(says: Callable[..., str], *words: str) -> None:
        with pytest.raises(UnquotableError):
            says(*words)

    zeros = [(says, text) for text in ("a\0b", "\0") for says in (Quoting().value, Quoting().name)]
    every([*zeros, (Quoting(is_sql_ascii=True).table, "a", "é"), (Quoting().table, "a", "")], unquotable)
    names = {(True, "é"): False, (False, "é"): True, (False, ""): False}
    assert {(ascii, text): Quoting(ascii).can_name("a", text) for ascii, text in names} == names


def test_only_letters_of_operators_are_an_operator() -> None:
    """Nor is what begins a comment, or ends a line."""

    def is_told(byte: int) -> None:
        letter, is_one = chr(byte), chr(byte) in "+-*/<>=~!@#%^&|`?"
        assert is_operator(letter) == is_operator(f"={letter}=") == is_one
        assert is_operator(letter * 63) == (is_one and letter != "-") and not is_operator(letter * 64)

    every(range(1, 256), is_told)
    no_operators = ["", "=--", "/*", "=/*=", "= ", "= 1) \\! id\n", "=\n"]
    assert [text for text in no_operators if is_operator(text)] == []


def test_regclass_reads_a_table() -> None:
    assert plain_table('a"b', "c.d") == '"a""b"."c.d"'
