"""python -m tools.ports_only SOURCES: outside targets/, a target is known only by its ports; exit 1 when it is not.

SOURCES is the package's folder. Forbidden there: importing a target's module, isinstance or a class pattern on a port
or on a class of targets/, getattr on a variable named for a target, and `.virtual`.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

TARGETS = "walproof.targets"
ALLOWED = ("walproof.targets.choose", "walproof.targets.configure", "walproof.targets.external.consent")
ASKING = {"getattr", "hasattr", "setattr"}
"""Built-ins that ask an object what it has."""


def classes(*files: Path) -> frozenset[str]:
    """Names of the classes that these files define."""
    trees = (ast.parse(path.read_text("utf-8")) for path in files)
    return frozenset(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def violations(tree: ast.Module, known: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Lines and reasons; `known` are the names of ports and of classes in targets/."""
    for node in ast.walk(tree):
        for line, module in _imported(node):
            if module.startswith(f"{TARGETS}.") and not module.startswith(ALLOWED):
                yield line, f"imports {module}"
        if isinstance(node, ast.Attribute) and node.attr == "virtual":
            yield node.lineno, "asks for .virtual"
        if isinstance(node, ast.MatchClass) and _name(node.cls) in known:
            yield node.cls.lineno, f"matches the class {_name(node.cls)}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            asked = _name(node.args[0])
            if node.func.id in ASKING and "target" in asked.lower():
                yield node.lineno, f"{node.func.id} on {asked}"
            named = {_name(part) for argument in node.args[1:] for part in ast.walk(argument)} & known
            if node.func.id in ("isinstance", "issubclass") and named:
                yield node.lineno, f"{node.func.id} with {', '.join(sorted(named))}"


def _imported(node: ast.AST) -> list[tuple[int, str]]:
    """Lines and full names that an import brings in, or a text that names a module of targets/ (importlib)."""
    if isinstance(node, ast.Import):
        return [(node.lineno, alias.name) for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [(node.lineno, node.value)]
    return []


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def main(sources: Path) -> int:
    """Print the violations; the exit code."""
    targets = sources / "targets"
    known = classes(sources / "model" / "ports.py", *targets.rglob("*.py"))
    found = 0
    for path in sorted(set(sources.rglob("*.py")) - set(targets.rglob("*.py"))):
        for line, why in violations(ast.parse(path.read_text("utf-8")), known):
            found += 1
            print(f"{path}:{line}: {why}")
    print(f"targets known by more than their ports: {found or 'none'}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
