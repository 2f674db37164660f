"""Every option of every verb has a test that proves it; `python -m tests.golden.test_option_proofs` lists them.

A test proves an option when it names the verb and the option as they are typed, itself or in its file outside the
other tests. Tests of what is refused do not count.
"""

import ast
import re
from functools import cache
from pathlib import Path

import click

from tests.golden.test_cli_help import VERBS
from tests.unit.test_every_option import ONE_MEMBER

TESTS = Path(__file__).parents[1]
FOLDERS = ("unit", "lab", "contract", "golden", "replay", "hostile")


def typed_in(node: ast.AST) -> set[str]:
    """Every word of the strings in it."""
    texts = (part.value for part in ast.walk(node) if isinstance(part, ast.Constant))
    return {word for text in texts if isinstance(text, str) for word in re.split(r"[\s=,]+", text)}


@cache
def typed_by_tests() -> tuple[tuple[str, set[str], set[str]], ...]:
    """Each test with the words it types itself, and those of its file outside tests; what is refused is left out."""
    found = []
    for file in (file for folder in FOLDERS for file in sorted((TESTS / folder).rglob("test_*.py"))):
        body = ast.parse(file.read_text("utf-8")).body
        own = [node for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
        around = set().union(*(typed_in(node) for node in body if node not in own))
        if file.name != "test_bad_input.py":
            found += [(f"{file.relative_to(TESTS)}::{node.name}", typed_in(node), around) for node in own]
    return tuple(found)


def proof(path: tuple[str, ...], option: str) -> str:
    """The test that proves this option of this verb; empty when there is none."""
    verbs = {path[-1]} if path[:2] != ("lab", "fault") or path[-1] not in ONE_MEMBER else ONE_MEMBER
    if path == ("apply",) and option in {o for p in VERBS[("advise",)].params for o in p.opts}:
        verbs = {"apply", "advise"}
    everywhere = "test_every_option" if option in {"--lab", "--context"} else "no test"
    for wide in (False, True):
        for name, own, around in typed_by_tests():
            words = own | around if wide else own
            if option in words and (verbs & words or everywhere in name):
                return name
    return ""


def options() -> list[tuple[tuple[str, ...], str]]:
    """Every verb with each of its options but --help and --version."""
    return [
        (path, max(option.opts, key=len))
        for path, verb in VERBS.items()
        for option in verb.params
        if isinstance(option, click.Option) and option.name not in {"help", "version"}
    ]


def test_every_option_has_a_test() -> None:
    assert not [f"{' '.join(path)} {option}" for path, option in options() if not proof(path, option)]


if __name__ == "__main__":
    for path, option in options():
        print(f"{' '.join(path):28} {option:22} {proof(path, option)}")
