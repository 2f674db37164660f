"""Whatever walproof prints to be pasted is made by `pasted`: no f-string puts a name into a command or a statement."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import walproof
from tests.fixtures.tiers import every

SOURCE = Path(walproof.__file__).parent
_COMMAND = re.compile(
    r"\b(?:kubectl|patronictl|psql(?! in)|curl|helm|rm|chmod|walproof (?:lab|report|revert|prove|price|apply|advise))"
    r" (?:[^;,():\x00]|:(?! ))*\x00|\b(?:as (?:a )?superuser|owner|as one)[^\x00]*: [^\x00]*[A-Z]{4,}[^\x00]*\x00"
)
_STATEMENT = re.compile(r"\b(?:GRANT|ALTER|CREATE|DROP|SELECT|SHOW|SET|REVOKE) [^\x00]*\x00")


def composed(node: ast.AST) -> str:
    """The text of an f-string, of + or of %, with NUL for each part that is no literal."""
    if isinstance(node, ast.JoinedStr):
        return "".join(map(composed, node.values))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mod):
        return composed(node.left) + composed(node.right)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "\0"


def hints(call: ast.Call) -> Iterator[ast.AST]:
    """What stands in the place of an error's hint."""
    name = getattr(call.func, "id", getattr(call.func, "attr", ""))
    if name.endswith(("Error", "NotObtained", "WaitTimeout", "LoadLost")):
        yield from call.args[1:2]
    yield from (keyword.value for keyword in call.keywords if keyword.arg == "hint")


def unquoted(tree: ast.AST) -> Iterator[int]:
    """The lines of texts that hold a command, or as a hint a statement, with something put in by hand."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr | ast.BinOp) and _COMMAND.search(composed(node)):
            yield node.lineno
        for hint in hints(node) if isinstance(node, ast.Call) else ():
            if isinstance(hint, ast.JoinedStr | ast.BinOp) and _STATEMENT.search(composed(hint)):
                yield hint.lineno


def test_no_command_is_composed_by_hand() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{line}"
        for path in sorted(SOURCE.rglob("*.py"))
        for line in unquoted(ast.parse(path.read_text("utf-8")))
    ]
    assert not found, f"use walproof.machine.quoting.pasted: {', '.join(found)}"


def test_the_rule_sees_each_way_to_compose_one() -> None:
    """As they stood before `pasted`."""

    def check(line: str) -> None:
        assert list(unquoted(ast.parse(f"def made():\n    {line}")))

    composed_by_hand = [
        'TargetError("x", f"kubectl get pod {pod}")',
        'f"kubectl cnpg fencing off {cluster} {member}"',
        '"walproof revert " + name',
        '"rm %s" % path',
        'TargetError("x", f\'as superuser: ALTER ROLE "{user}" CREATEDB\')',
        'UsageError("x", "see SHOW " + name)',
        "return f'as the owner: CREATE SCHEMA x AUTHORIZATION \"{user}\"'",
    ]
    every(composed_by_hand, check)
