"""Mutants of the guard's three deciding files, by their syntax trees; each runs in the place of the shipped code.

What no schedule finds the unit tests of the guard are asked, and are counted apart. Left out, because nothing they
change decides anything: what is shown (lines, notes, reasons' words, docstrings), how long each step took, counters,
the names of fields, a comparison's boundary between two times (no two are equal), and moving etcd's own leader
(tests/lab/test_etcd3.py), which is off unless asked for.
"""

import ast
import contextlib
import inspect
import io
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import chain
from types import ModuleType

import pytest

from tests.guard_simulation import guard
from tests.guard_simulation.schedule import Schedule, draw
from tests.guard_simulation.shortest import SHORTEST
from tests.guard_simulation.simulate import judge
from walproof.errors import Error
from walproof.guarding import decide, leader_lock, run, seal_quorum, suspicion

FILES = {"decide.py": decide, "seal_quorum.py": seal_quorum, "leader_lock.py": leader_lock}
_AGAIN = (seal_quorum, suspicion, decide, run)
"""What takes names from those three, in the order in which it is executed anew."""
SHOWN = (
    "line", "lines", "note", "noted", "why", "worth", "shown_at", "before", "able", "reason", "of_all", "tags",
    "hindered",
)  # fmt: skip
"""Names whose values are only shown, in decide.py and seal_quorum.py."""
SHOWN_FIELDS = ("lines", "why_not", "suspicions", "takeovers", "noted", "promoted", "last_sign")
"""Keywords of replace() and Steps() that only say what was done; a last sign counts in a Memory alone."""
SKIPPED = (
    "durations_s", "_tagged", "_watching", "part", "_host", "EtcdAccess", "why_never",
)  # fmt: skip
"""Functions that only say something, or that are not the guard's."""


EQUIVALENT = {
    ("decide.py", "leader_version", "0 -> 1"): "it is compared for the first time with a holder that is not ''",
    ("decide.py", "left", "0 -> 1"): "an empty etcd has revision 1, so that no key ever has that version",
    ("decide.py", "_await_other_guard", "0 -> 1"): "an empty etcd has revision 1, so that no key ever has that version",
    ("decide.py", "_await_other_guard", "sight.lock.holder_version == memory.left or why_void(sight.lock) or "
        "why_hands_off(sight.lo -> sight.lock.holder_version == memory.left or why_void(sight.lock)"):
        "a pause, a switchover, other voters change a version that why_void compares; by an old reading nothing seals",
    ("decide.py", "_check", "fresh and memory.successor and (sight.lock.holder == memory.successor) "
        "-> memory.successor and sight.lock.holder == memory.successor"):
        "taken() forgets the successor, and only a fresh reading brings one: all that come later are fresh",
    ("decide.py", "_suspect", "memory.steps.suspected or 0.0 -> memory.steps.suspected"):
        "it is set where the state is SUSPECTING, and just before otherwise",
    ("decide.py", "_too_soon", "return None -> return False"): "it is only asked whether there is a reason",
    ("seal_quorum.py", "why_not", "return None -> return False"): "it is only asked whether there is a reason",
    ("seal_quorum.py", "why_void", "return None -> return False"): "it is only asked whether there is a reason",
    ("decide.py", "config", "0 -> 1"): "an empty etcd has revision 1, so that no key ever has that version",
    ("seal_quorum.py", "ahead", "0 -> 1"): "where the default counts there is nothing to choose from",
    ("leader_lock.py", "", "86400.0 -> 1728000.0"): "etcd's for ever is 292 years",
    ("leader_lock.py", "seal", "0 -> 1"): "no intent is compared where another's seal is gone on with",
}  # fmt: skip
"""Mutants that differ from the shipped code in no state that can be reached, by file, function or field and change."""

_NEGATED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_BOUNDARY: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt
}  # fmt: skip
_COUNTED = ("len(", "quorum", "priority", "version")


def _text(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())[:90]


def _places(node: ast.AST, inside: str = "") -> Iterator[tuple[ast.AST, str, int | None, ast.AST, str]]:
    """Every node below with its holder, field and place in a list, and what it is in; nothing that is only shown."""
    match node:
        case ast.FunctionDef(name=str(name)) | ast.AnnAssign(target=ast.Name(id=str(name))):
            inside = name
    for field, value in ast.iter_fields(node):
        children = value if isinstance(value, list) else [value]
        for place, child in enumerate(children):
            if not isinstance(child, ast.AST) or _is_shown(node, field, child):
                continue
            yield node, field, place if isinstance(value, list) else None, child, inside
            yield from _places(child, inside)


def _is_shown(holder: ast.AST, field: str, child: ast.AST) -> bool:
    if isinstance(child, ast.JoinedStr) or field in ("annotation", "returns", "decorator_list"):
        return True
    if isinstance(child, ast.FunctionDef) and child.name in SKIPPED:
        return True
    if isinstance(child, ast.keyword) and child.arg in SHOWN_FIELDS:
        return True
    if isinstance(child, ast.Assign):
        names = [n.id for t in child.targets for n in ast.walk(t) if isinstance(n, ast.Name)]
        return bool(names) and all(n in SHOWN for n in names)
    return isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of a file's tree: where, what it was and became; after: what that field of its holder becomes."""

    file: str
    line: int
    inside: str
    what: str
    holder: ast.AST
    field: str
    after: object

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}"


_TREES = {file: ast.parse(inspect.getsource(module)) for file, module in FILES.items()}


def _of_file(file: str) -> Iterator[Mutant]:
    for holder, field, place, node, inside in _places(_TREES[file]):
        at = (file, getattr(node, "lineno", 0), inside)
        for to in _others(holder, field, node):
            if (to is None and place is None) or (to is not None and ast.dump(to) == ast.dump(node)):
                continue
            became = [] if to is None else [to]
            around = getattr(holder, field)
            after = to if place is None else [*around[:place], *became, *around[place + 1 :]]
            yield Mutant(*at, f"{_text(node)} -> {_text(to) if to else 'nothing'}", holder, field, after)
        if isinstance(node, ast.If | ast.IfExp):
            for value in (True, False):
                yield Mutant(*at, f"if {_text(node.test)} -> if {value}", node, "test", _keeping(node.test, value))


def _keeping(test: ast.AST, value: bool) -> ast.AST:
    """That value, and the names that the test gives (:=)."""
    named = [n for n in ast.walk(test) if isinstance(n, ast.NamedExpr)]
    if not named:
        return ast.Constant(value)
    return ast.Subscript(ast.Tuple([*named, ast.Constant(value)], ast.Load()), ast.Constant(-1), ast.Load())


def _others(holder: ast.AST, field: str, node: ast.AST) -> Iterator[ast.AST | None]:
    """What may stand in the place of a node; None for nothing."""
    yield from _conditions(node)
    yield from _values(holder, node)
    yield from _calls(node)
    if isinstance(node, ast.Return) and node.value is not None:
        yield from _returned(node.value)
    part = isinstance(node, ast.keyword) and isinstance(holder, ast.Call) and _text(holder.func) == "replace"
    element = isinstance(node, ast.Call) and isinstance(holder, ast.List) and field == "elts"
    if part or element or _is_appended(node) or (isinstance(holder, ast.comprehension) and field == "ifs"):
        yield None


def _conditions(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            yield ast.Compare(left, [_NEGATED[type(op)]()], [right])
            if type(op) in _BOUNDARY and any(word in _text(node) for word in _COUNTED):
                yield ast.Compare(left, [_BOUNDARY[type(op)]()], [right])
        case ast.BoolOp(op=op, values=values):
            for i in range(len(values)):
                rest = values[:i] + values[i + 1 :]
                yield rest[0] if len(rest) == 1 else ast.BoolOp(op, rest)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand


def _values(holder: ast.AST, node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)) if not isinstance(holder, ast.Subscript):
            yield ast.Constant(value + 1)
        case ast.Constant(value=float(value)):
            yield ast.Constant(value * 20)
            yield ast.Constant(0.0)
        case ast.Dict(keys=keys, values=values) if isinstance(holder, ast.Assign):
            for i in range(len(keys)):
                yield ast.Dict(keys[:i] + keys[i + 1 :], values[:i] + values[i + 1 :])


def _calls(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Call(func=ast.Name(id=str(name)), args=args, keywords=keywords) if name in _OTHER:
            yield ast.Call(ast.Name(_OTHER[name], ast.Load()), args, keywords)
        case ast.BinOp(op=ast.Add() | ast.Sub() as op, left=left, right=right):
            if not _is_text(node) and "set(" not in _text(node) and "prefix" not in _text(node):
                yield ast.BinOp(left, ast.Sub() if isinstance(op, ast.Add) else ast.Add(), right)


_OTHER = {"max": "min", "min": "max", "all": "any", "any": "all"}


def _is_appended(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and ".append" in _text(node.value.func)


def _is_text(node: ast.AST) -> bool:
    return any(isinstance(n, ast.JoinedStr) or _is_string(n) for n in ast.walk(node))


def _is_string(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _returned(value: ast.expr) -> Iterator[ast.AST]:
    shown = isinstance(value, ast.JoinedStr) or _is_string(value)
    if isinstance(value, ast.Compare | ast.BoolOp) or (isinstance(value, ast.Constant) and not shown):
        yield ast.Return(ast.Constant(True))
        yield ast.Return(ast.Constant(False))
    elif shown:
        yield ast.Return(ast.Constant(None))


@cache
def mutants() -> list[Mutant]:
    """Every mutant that changes something; AssertionError for a row of EQUIVALENT that is none any more."""
    known = [((m.file, m.inside, m.what), m) for file in FILES for m in _of_file(file)]
    stale = EQUIVALENT.keys() - dict(known).keys()
    assert not stale, f"no such mutant: {stale}"
    return [mutant for change, mutant in known if change not in EQUIVALENT]


@contextmanager
def in_place(file: str, tree: ast.Module) -> Iterator[None]:
    """Run that code where the shipped one was."""
    module = FILES[file]
    shipped = {m: dict(vars(m)) for m in (*_AGAIN, leader_lock)}
    try:
        _execute(module, tree)
        for other in _AGAIN[_AGAIN.index(module) + 1 :] if module in _AGAIN else ():
            _execute(other, ast.parse(inspect.getsource(other)))
        guard.quicken()
        yield
    finally:
        for m, names in shipped.items():
            vars(m).clear()
            vars(m).update(names)


def _execute(module: ModuleType, tree: ast.Module) -> None:
    assert sys.modules[module.__name__] is module
    code = compile(ast.fix_missing_locations(tree), module.__file__ or "", "exec")
    exec(code, vars(module))


_ENDS = (AssertionError, AttributeError, KeyError, IndexError, NameError, TypeError, ValueError, OSError, Error)
"""What a mutant may raise: it ends the guard."""
_UNITS = [f"tests/unit/test_guard_{name}.py" for name in ("decide", "seal_quorum", "suspicion", "leader_lock")]
_killers: list[Schedule] = []
"""Those that have found mutants, the last one first: they often find the next one too."""


def seeds(number: int) -> Iterator[int]:
    """First as many again whose schedules the guard must cope with in time, or must leave alone; then any."""
    return chain((s for s in range(number * 4) if s % 25 <= 3), (s for s in range(number) if s % 25 > 3))


def _violation(number: int) -> str:
    """How the code that is in place first goes wrong, "" where it does not; the schedules by hand are tried first."""
    for schedule in chain(list(_killers), SHORTEST.values(), map(draw, seeds(number))):
        try:
            kinds = [v.kind for v in judge(schedule).wrong]
        except _ENDS as error:
            kinds = [type(error).__name__]
        if kinds:
            _killers[:] = [schedule, *(s for s in _killers if s != schedule)][:40]
            return kinds[0]
    return ""


class _Failed:
    """The name of a unit test that fails."""

    name = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.name = report.nodeid.rpartition("::")[2]


def _failing_unit() -> str:
    """The first unit test that the code which is in place fails, "" for none."""
    for name in [n for n in sys.modules if n.startswith(("tests.unit.", "tests.fixtures.guards"))]:
        del sys.modules[name]  # they took names from the code that was in place before
    failed = _Failed()
    with contextlib.redirect_stdout(io.StringIO()):
        code = pytest.main(["-xq", "-pno:cacheprovider", *_UNITS], [failed])
    return failed.name or ("" if code is pytest.ExitCode.OK else "the tests are not even collected")


def _fate(n: int, number: int) -> tuple[str, str]:
    """The n-th mutant, and what finds it: "found by" a violation in so many schedules, "unit test", or "SURVIVES"."""
    mutant = mutants()[n]
    before = getattr(mutant.holder, mutant.field)
    setattr(mutant.holder, mutant.field, mutant.after)
    try:
        with in_place(mutant.file, _TREES[mutant.file]):
            kind = _violation(number)
            unit = "" if kind else _failing_unit()
    finally:
        setattr(mutant.holder, mutant.field, before)
    return str(mutant), f"found by {kind}" if kind else f"unit test {unit}" if unit else "SURVIVES"


def fates(number: int, processes: int, only: str = "", every: int = 1) -> Iterator[tuple[str, str]]:
    """(mutant, what found it) of all whose name contains those words, or of every so manieth, as they are known."""
    chosen = [n for n, mutant in enumerate(mutants()) if only in str(mutant)][::every]
    with ProcessPoolExecutor(processes) as pool:
        for done in as_completed([pool.submit(_fate, n, number) for n in chosen]):
            yield done.result()
