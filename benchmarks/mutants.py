"""Attacks the tests of the judge: small faults in its code, one at a time, must make a unit test fail.

`python -m benchmarks.mutants [--most 120] [--seed 1] [--only FILE …]`: a seeded choice of all mutants of the judge's
files, each in a process of its own; prints the survivors and the share caught; exit 1 below 95 %.
"""

import ast
import contextlib
import copy
import multiprocessing
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_loader
from pathlib import Path
from types import CodeType

import numpy as np
import pytest

from benchmarks.command import chosen, command

ROOT = Path(__file__).parent.parent
FILES = (
    "lost_commits", "fault_happened", "level_in_effect", "verdict", "judge", "outage", "loss_bounds", "gate",
    "campaign",
)  # fmt: skip
TESTS = (
    "values", "findings", "verdicts", "outage", "order", "happened", "in_effect", "assumptions", "conclude", "history",
    "storm",
)  # fmt: skip
WANTED = 0.95
TIMEOUT_S = 300
_FLIPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.Mult: ast.Add,
}  # fmt: skip
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["numpy", "pytest", "hypothesis", "pydantic", "scipy.stats"])
_CALLS = {"max": "min", "min": "max", "any": "all", "all": "any"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: the file, its line, what was changed, and the file's text with it."""

    file: str
    line: int
    what: str
    text: str


def changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """What can be changed in one node, each with the node that stands in its place."""
    new = copy.deepcopy(node)
    if isinstance(new, ast.Compare) and type(new.ops[0]) in _FLIPPED:
        before = type(new.ops[0])
        new.ops[0] = _FLIPPED[before]()
        yield f"{before.__name__} → {_FLIPPED[before].__name__}", new
    elif isinstance(new, ast.BoolOp):
        new.op = ast.Or() if isinstance(new.op, ast.And) else ast.And()
        yield "and ↔ or", new
    elif isinstance(new, ast.UnaryOp) and isinstance(new.op, (ast.Not, ast.Invert)):
        yield "not dropped", new.operand
    elif isinstance(new, ast.BinOp) and type(new.op) in _OPERATORS:
        before_op = type(new.op)
        new.op = _OPERATORS[before_op]()
        yield f"{before_op.__name__} → {_OPERATORS[before_op].__name__}", new
    elif isinstance(new, ast.Call) and isinstance(new.func, ast.Name) and new.func.id in _CALLS:
        new.func.id = _CALLS[new.func.id]
        yield f"{_CALLS[new.func.id]} → {new.func.id}", new
    elif isinstance(new, ast.Constant) and isinstance(new.value, bool):
        yield f"{new.value} → {not new.value}", ast.Constant(not new.value)


def _run(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node that runs: all but type annotations."""
    yield tree
    for field, value in ast.iter_fields(tree):
        if field not in ("annotation", "returns"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _run(child)


class _Replace(ast.NodeTransformer):
    """Puts one node in the place of another."""

    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self._old, self._new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        """The new node for the old one, every other as it is."""
        return self._new if node is self._old else self.generic_visit(node)


def mutants(name: str) -> Iterator[Mutant]:
    """Every mutant of one file of proving/."""
    path = ROOT / "src/walproof/proving" / f"{name}.py"
    source = path.read_text(encoding="utf-8")
    count = sum(1 for node in _run(ast.parse(source)) for _ in changes(node))
    for wanted in range(count):
        tree = ast.parse(source)
        found = [(node, what, new) for node in _run(tree) for what, new in changes(node)]
        node, what, new = found[wanted]
        line = int(getattr(node, "lineno", 0))
        text = ast.unparse(ast.fix_missing_locations(_Replace(node, ast.copy_location(new, node)).visit(tree)))
        if text != ast.unparse(ast.parse(source)):
            yield Mutant(name, line, what, text)


class _Mutated(SourceFileLoader):
    """Loads one module from the text of a mutant."""

    def __init__(self, name: str, path: str, text: str) -> None:
        super().__init__(name, path)
        self._text = text

    def get_code(self, fullname: str) -> CodeType:
        """The mutant's."""
        return compile(self._text, self.get_filename(fullname), "exec")


class _Finder:
    """Finds that module before any other does."""

    def __init__(self, mutant: Mutant) -> None:
        self._name = f"walproof.proving.{mutant.file}"
        self._loader = _Mutated(self._name, str(ROOT / "src/walproof/proving" / f"{mutant.file}.py"), mutant.text)

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """The mutant's, for its name."""
        return spec_from_loader(name, self._loader) if name == self._name else None


def _test(mutant: Mutant, folder: str) -> None:
    """In a process of its own: the judge's unit tests with the mutant; its exit code is pytest's."""
    os.chdir(folder)
    sys.dont_write_bytecode = True
    sys.path[:0] = [folder, f"{folder}/src"]
    sys.meta_path.insert(0, _Finder(mutant))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    tests = [f"tests/unit/test_proving_{name}.py" for name in TESTS]
    sys.exit(int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--tb=no", *tests])))


def fails(mutant: Mutant, folder: str) -> bool:
    """Whether the judge's unit tests in the folder fail, or hang, with the mutant."""
    process = _CONTEXT.Process(target=_test, args=(mutant, folder))
    process.start()
    process.join(TIMEOUT_S)
    if process.exitcode is None:
        process.kill()
        process.join()
    return process.exitcode != 0


def caught(mutant: Mutant, folder: str) -> bool:
    """Whether the tests fail; a survivor is printed."""
    found = fails(mutant, folder)
    if not found:
        print(f"SURVIVED: {mutant.file}.py line {mutant.line}: {mutant.what}", flush=True)
    return found


@contextlib.contextmanager
def copied() -> Iterator[str]:
    """A copy of source and tests as they are now: what is edited meanwhile would catch every mutant."""
    with tempfile.TemporaryDirectory(prefix="walproof-mutants-") as folder:
        for name in ("src", "tests"):
            shutil.copytree(ROOT / name, f"{folder}/{name}", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        shutil.copy(ROOT / "pyproject.toml", folder)
        yield folder


def main(*, most: int = 120, seed: int = 1, workers: int = 2, only: tuple[str, ...] = ()) -> int:
    """Try a choice of the mutants."""
    unchanged = Mutant(
        "lost_commits", 0, "", (ROOT / "src/walproof/proving/lost_commits.py").read_text(encoding="utf-8")
    )
    every = [mutant for name in chosen(only, FILES) for mutant in mutants(name)]
    tried = [every[int(i)] for i in np.random.default_rng(seed).permutation(len(every))[:most]]
    with copied() as folder, ThreadPoolExecutor(workers) as pool:
        if fails(unchanged, folder):
            print("the unit tests of the judge fail without any mutant")
            return 1
        results = list(pool.map(lambda mutant: caught(mutant, folder), tried))
    share = sum(results) / len(results)
    print(f"caught {sum(results)} of {len(results)} mutants ({share:.1%}), chosen of {len(every)}")
    return int(share < WANTED)


if __name__ == "__main__":
    command(main)
