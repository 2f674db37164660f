"""Every fix of the doctor's catalogue with strangers' names in every field: each is one word of its syntax, no more.

A new check is tried too: the catalogue's seeds have one for each, and what builds a fix is asked for what it quoted."""

import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fixtures.cnpg.seeds import healthy
from tests.fixtures.seeds import SEEDS
from tests.fixtures.sick import well, with_member
from tests.fixtures.tiers import every
from walproof.advising.doctor.catalogue import CATALOGUE
from walproof.advising.doctor.finding import Check
from walproof.machine import quoting
from walproof.machine.quoting import Pasted, pasted
from walproof.model.facts import Facts, Override

EVIL = {
    "semicolon": "x; touch mark #",
    "command": "$(touch mark)",
    "backquote": "`touch mark`",
    "quote": "x' ; touch mark ; '",
    "double-quote": 'x" ; touch mark ; "',
    "newline": "x\ntouch mark\n",
    "hash": "x # ",
    "sql-comment": "x'); DROP TABLE t; --",
    "backslash": "x\\",
    "backslash-quote": "\\'; DROP TABLE t; --",
    "option": "--kubeconfig=mark",
    "bidi": "x\u202etxt.exe",
    "zero-width": "x\u200by",
    "github": "${{ secrets.x }}",
    "tag": "!!python/object:os.system",
    "colon": "a: b",
    "alias": "*a",
    "anchor": "&a b",
    "separator": "a\u2028b",
    "escape": "x\x1b[2J",
}
NAMES = (
    "name", "application_name", "receiver_name", "user", "namespace", "current_primary", "database", "lease_holder",
)  # fmt: skip
Quoted = list[tuple[str, str, str]]
"""Syntax, value, and the text that it became."""


def strange(tree: Any, evil: str, known: set[str]) -> Any:
    """The same facts with every name that is one of these made strange."""
    if isinstance(tree, str):
        return evil + tree if tree in known else tree
    if isinstance(tree, Override):
        return replace(tree, name=evil + tree.name, reset=f"ALTER ROLE a; {evil}")
    if isinstance(tree, tuple):
        return tuple(strange(one, evil, known) for one in tree)
    if isinstance(tree, dict):
        return {key: strange(value, evil, known) for key, value in tree.items()}
    if not is_dataclass(tree) or isinstance(tree, type):
        return tree
    return replace(
        tree, **{one.name: strange(getattr(tree, one.name), evil, known) for one in fields(tree) if one.init}
    )


def names_in(tree: Any) -> Iterator[str]:
    for inner in tree if isinstance(tree, tuple) else tree.values() if isinstance(tree, dict) else ():
        yield from names_in(inner)
    for one in fields(tree) if is_dataclass(tree) and not isinstance(tree, type) else ():
        value = getattr(tree, one.name)
        if isinstance(value, str) and value and one.name in NAMES and type(tree).__name__ != "SettingFact":
            yield value
        yield from names_in(value)


def sql_strings(text: str) -> list[str]:
    """What PostgreSQL reads of a string or an identifier that is all of this text (scan.l)."""
    if text[:1] in "EU":
        body = text[text.index(text[-1]) + 1 : -1]
        numbers = re.sub(r"\\(?:u([0-9A-F]{4})|U([0-9A-F]{8})|\+([0-9A-F]{6})|([0-9A-F]{4}))",
                         lambda match: chr(int(next(filter(None, match.groups())), 16)), body)  # fmt: skip
        return [numbers.replace("\\\\", "\\").replace(text[-1] * 2, text[-1])]
    match = re.fullmatch(r"'((?:[^'\\]|'')*+)'|\"((?:[^\"]|\"\")*+)\"", text)
    assert match, text
    return [(match[1] or match[2] or "").replace("''" if text[0] == "'" else '""', text[0])]


IN_A_SHELL = ("shell", "argument", "path", "words")


def reads_back(syntax: str, value: str, text: str) -> bool:
    """Whether a reader of that syntax gets the value, as one thing, of the text; a shell is asked by `shell_reads`."""
    if syntax in IN_A_SHELL:
        return shlex.split(text)[-1] == value
    if syntax in ("sql_text", "sql_name"):
        return sql_strings(text) == [value] and text.isprintable()
    if syntax == "yaml":
        return bool(yaml.safe_load(f"a: {text}\nb: 1") == {"a": value, "b": 1})
    if syntax == "conf":
        return "\n" not in text and re.fullmatch(r"'(?:[^'\\]|''|\\.)*+'", text) is not None
    if syntax == "statement":
        return shlex.split(text) == [value] if text != value else re.fullmatch(r'[\w.,()\[\] "]+;?', text) is not None
    return syntax == "composed" and (value == text)


def shell_reads(seen: Quoted, folder: Path) -> None:
    """One sh gets every text that was quoted for a shell, and makes the same words of each as shlex does."""
    texts = list(dict.fromkeys(text for syntax, _, text in seen if syntax in IN_A_SHELL))
    script = "".join(f"printf '%s\\0' {text}\n" for text in texts)
    done = subprocess.run(["sh"], input=script.encode(), capture_output=True, check=False, cwd=folder)
    read, expected = done.stdout.decode().split("\0")[:-1], [word for text in texts for word in shlex.split(text)]
    assert (read, done.stderr) == (expected, b""), "a shell reads other words"
    assert list(folder.iterdir()) == []


@pytest.fixture
def quoted(monkeypatch: pytest.MonkeyPatch) -> Quoted:
    """All that is quoted from here on."""
    seen: Quoted = []

    def noted(syntax: str, quote: Any) -> Any:
        def noting(value: object) -> str:
            text: str = quote(value)
            seen.append((syntax, str(value), text))
            return text

        return noting

    monkeypatch.setattr(quoting, "QUOTING", {name: noted(name, quote) for name, quote in quoting.QUOTING.items()})
    return seen


@pytest.mark.parametrize("evil", EVIL.values(), ids=EVIL)
def test_no_name_is_more_than_one_word_of_any_fix(evil: str, quoted: Quoted, tmp_path: Path) -> None:
    asked: Quoted = []

    def of(check: Check) -> None:
        sane: Facts = SEEDS[check.id]
        facts: Facts = strange(sane, evil, set(names_in(sane)))
        quoted.clear()
        for hit in check.find(facts):
            assert type(hit.fix) is Pasted
            rest = str(hit.fix)
            for syntax, value, text in sorted(quoted, key=lambda one: -len(one[2])):
                assert evil not in value or reads_back(syntax, value, text), (syntax, value, text)
                rest = rest.replace(text, "…") if text else rest
            assert evil not in rest, "it came in past the one that quotes"
        asked.extend(one for one in quoted if evil in one[1])

    every(CATALOGUE, of)
    shell_reads(asked, tmp_path)


@pytest.mark.parametrize(
    "evil",
    [pytest.param("".join(EVIL.values()), id="all-of-them"),
     *(pytest.param(evil, id=name, marks=pytest.mark.nightly) for name, evil in EVIL.items())],
)  # fmt: skip
def test_the_line_that_is_pasted_runs_nothing_of_a_name(evil: str, tmp_path: Path) -> None:
    """As it was: a Cluster named `pg; touch … #`, by a shell that has every program of the line."""
    for program in ("kubectl", "patronictl", "psql"):
        (tmp_path / program).write_text("#!/bin/sh\nexit 0\n")
        (tmp_path / program).chmod(0o700)
    lines = []
    for facts in (healthy(), well()):
        for seed in (with_member(facts, facts.members[0].name, monitor=False), *SEEDS.values()):
            made = strange(seed, evil, set(names_in(seed)))
            lines += [
                hit.fix
                for check in CATALOGUE
                for hit in check.find(made)
                if hit.fix.startswith(("kubectl", "patronictl"))
            ]
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    for line in dict.fromkeys(lines):
        subprocess.run(["sh", "-c", line], cwd=tmp_path, env=environment, capture_output=True, timeout=10, check=False)
        assert not (tmp_path / "mark").exists(), line
    assert lines


def test_a_template_takes_nothing_that_was_not_quoted_for_a_syntax() -> None:
    def refused(template: str) -> None:
        with pytest.raises((ValueError, IndexError)):
            pasted(template, name="x")

    every(["kubectl get {name}", "{name!r}", "{name:x}", "{name:>8}", "{}", "{0:shell}"], refused)
    with pytest.raises(TypeError):
        pasted("psql {statement:composed}", statement="DROP TABLE t")


def test_each_syntax_gives_the_value_back(tmp_path: Path) -> None:
    seen: Quoted = []

    def given_back(syntax: str, evil: str) -> None:
        value = f"./{evil}" if syntax == "path" and evil.startswith("-") else evil
        seen.append((syntax, value, quoting.QUOTING[syntax](evil)))
        assert reads_back(*seen[-1])

    syntaxes = (*IN_A_SHELL, "sql_text", "sql_name", "yaml", "conf")
    every([(syntax, evil) for syntax in syntaxes for evil in EVIL.values()], given_back)
    shell_reads(seen, tmp_path)
