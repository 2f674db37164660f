"""Attacks the tests of what everything rests on: small faults in its code, one at a time, must make a unit test fail.

`python -m benchmarks.mutants [--most 100] [--seed 1] [--only FAMILY …] [--kept FILE]`: of each family (judge, levels,
estimates, forecast) a seeded choice of its mutants, each in a process of its own, against what `make test` runs of the
family's tests; prints the survivors and a table; exit 1 below 95 % of a family. FILE keeps which were caught; where it
is there already, those that it says were caught and are not now, or are not tried, stand in the table and make exit 1.
"""

import ast
import contextlib
import copy
import json
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


@dataclass(frozen=True, slots=True)
class Family:
    """Files that answer one question, below src/walproof, and the tests that must notice a fault in them."""

    files: tuple[str, ...]
    tests: tuple[str, ...]
    """Patterns of file names below tests/unit, the quickest first."""

    def paths(self, folder: Path) -> list[str]:
        """Those tests in a checkout."""
        found = (path for pattern in self.tests for path in sorted(folder.glob(f"tests/unit/test_{pattern}.py")))
        return list(dict.fromkeys(map(str, found)))


_PROVING = ("lost_commits", "fault_happened", "verdict", "judge", "outage", "loss_bounds", "gate", "campaign")
_ESTIMATING = ("intervals", "observed_prices", "observed_waits", "quantiles", "ratios")
_FORECASTING = (
    "episodes", "failover_rules", "failure_rates", "forecast", "importance_sampling", "loss_chances",
    "outages_from_drills", "sensitivity", "simulate", "topology",
)  # fmt: skip
FAMILIES = {
    "judge": Family(tuple(f"proving/{name}" for name in _PROVING), ("proving_[!s]*", "proving_*")),
    "levels": Family(
        ("proving/level_in_effect", "pricing/level_in_effect"),
        ("proving_in_effect", "price_level*", "proving_*", "price_*", "pricing*"),
    ),
    "estimates": Family(
        ("pricing/estimates", *(f"estimating/{name}" for name in _ESTIMATING)),
        ("estimating*", "observe*", "pricing", "price_*", "pricing*"),
    ),
    "forecast": Family(
        tuple(f"forecasting/{name}" for name in _FORECASTING),
        ("forecasting_model", "forecasting_signed", "forecasting_[!ms]*", "forecast*"),
    ),
}
WANTED = 0.95
TIMEOUT_S = 900
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
    """One change: the file below src/walproof, its line, what was changed, and the file's text with it."""

    file: str
    line: int
    what: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}.py line {self.line}: {self.what}"


def source(file: str) -> Path:
    """Where a family's file lies."""
    return ROOT / "src/walproof" / f"{file}.py"


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
    """Every mutant of one file."""
    read = source(name).read_text(encoding="utf-8")
    count = sum(1 for node in _run(ast.parse(read)) for _ in changes(node))
    for wanted in range(count):
        tree = ast.parse(read)
        found = [(node, what, new) for node in _run(tree) for what, new in changes(node)]
        node, what, new = found[wanted]
        line = int(getattr(node, "lineno", 0))
        text = ast.unparse(ast.fix_missing_locations(_Replace(node, ast.copy_location(new, node)).visit(tree)))
        if text != ast.unparse(ast.parse(read)):
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
        self._name = f"walproof.{mutant.file.replace('/', '.')}"
        self._loader = _Mutated(self._name, str(source(mutant.file)), mutant.text)

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """The mutant's, for its name."""
        return spec_from_loader(name, self._loader) if name == self._name else None


def _test(mutant: Mutant, folder: str, tests: list[str]) -> None:
    """In a process of its own: these tests with the mutant; its exit code is pytest's."""
    os.chdir(folder)
    sys.dont_write_bytecode = True
    sys.path[:0] = [folder, f"{folder}/src"]
    sys.meta_path.insert(0, _Finder(mutant))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    sys.exit(int(pytest.main(["-x", "-q", "-m", "not nightly", "-p", "no:cacheprovider", "--tb=no", *tests])))


def fails(mutant: Mutant, folder: str, tests: list[str]) -> bool:
    """Whether the tests in the folder fail, or hang, with the mutant."""
    process = _CONTEXT.Process(target=_test, args=(mutant, folder, tests))
    process.start()
    process.join(TIMEOUT_S)
    if process.exitcode is None:
        process.kill()
        process.join()
    return process.exitcode != 0


@contextlib.contextmanager
def copied() -> Iterator[str]:
    """A copy of source and tests as they are now: what is edited meanwhile would catch every mutant."""
    with tempfile.TemporaryDirectory(prefix="walproof-mutants-") as folder:
        for name in ("src", "tests"):
            shutil.copytree(ROOT / name, f"{folder}/{name}", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        shutil.copy(ROOT / "pyproject.toml", folder)
        yield folder


def tried(family: Family, folder: str, most: int, seed: int, workers: int) -> dict[str, bool]:
    """A choice of the family's mutants: whether each is caught; survivors are printed."""
    every = [mutant for file in family.files for mutant in mutants(file)]
    chosen_ones = [every[int(i)] for i in np.random.default_rng(seed).permutation(len(every))[:most]]
    tests = family.paths(Path(folder))
    unchanged = Mutant(family.files[0], 0, "nothing", source(family.files[0]).read_text(encoding="utf-8"))
    if fails(unchanged, folder, tests):
        raise SystemExit("the family's tests fail without any mutant")

    def caught(mutant: Mutant) -> bool:
        found = fails(mutant, folder, tests)
        if not found:
            print(f"SURVIVED: {mutant}", flush=True)
        return found

    with ThreadPoolExecutor(workers) as pool:
        return dict(zip(map(str, chosen_ones), pool.map(caught, chosen_ones), strict=True))


def main(
    *, most: int = 100, seed: int = 1, workers: int = 2, only: tuple[str, ...] = (), kept: Path | None = None
) -> int:
    """Try a choice of each family's mutants."""
    before: dict[str, dict[str, bool]] = json.loads(kept.read_text("utf-8")) if kept and kept.exists() else {}
    now: dict[str, dict[str, bool]] = {}
    with copied() as folder:
        for name in chosen(only, tuple(FAMILIES)):
            now[name] = tried(FAMILIES[name], folder, most, seed, workers)
            if kept and not before:
                kept.write_text(json.dumps(now, indent=1), "utf-8")
    lost = {
        name: [m for m, was in before.get(name, {}).items() if was and not found.get(m, False)]
        for name, found in now.items()
    }
    print(f"{'family':<12}{'caught':>10}{'of':>6}{'share':>8}  caught before, not now")
    for name, found in now.items():
        share = sum(found.values()) / len(found)
        print(f"{name:<12}{sum(found.values()):>10}{len(found):>6}{share:>8.1%}  {'; '.join(lost[name]) or '–'}")
    enough = all(sum(found.values()) >= WANTED * len(found) for found in now.values())
    return int(not enough or any(lost.values()))


if __name__ == "__main__":
    command(main)
