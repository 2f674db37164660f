"""Mutants of the guard's three deciding files, by their syntax trees; each runs in the place of the shipped code.

Left out, because nothing they change decides anything: what is shown (lines, notes, reasons' words, docstrings), how
long each step took, counters, the names of fields, a comparison's boundary between two times (no two are equal), and
moving etcd's own leader (tests/lab/test_etcd3.py), which is off unless asked for.
"""

import ast
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import ModuleType

from tests.guard_simulation import guard
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


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: where, what it was, what it became."""

    file: str
    line: int
    inside: str
    what: str
    tree: ast.Module
    do: Callable[[], None]
    undo: Callable[[], None]

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}"


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

Change = tuple[int, str, str, Callable[[], None], Callable[[], None]]
"""The line, the function or field that it is in, what changes, how to do and undo it in the tree."""

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


def _swap(holder: ast.AST, field: str, place: int | None, to: ast.AST | None, at: tuple[int, str], what: str) -> Change:
    """Put another node in that field of its holder, or in its list; None takes it out of the list."""
    value = getattr(holder, field)
    before = list(value) if place is not None else value

    def do() -> None:
        if place is None:
            setattr(holder, field, to)
        else:
            changed = list(before)
            changed[place : place + 1] = [] if to is None else [to]
            setattr(holder, field, changed)

    return *at, what, do, lambda: setattr(holder, field, before)


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


def _changes(tree: ast.Module) -> Iterator[Change]:
    for holder, field, place, node, inside in _places(tree):
        line = (getattr(node, "lineno", 0), inside)
        for to in _others(holder, field, node):
            if (to is None and place is None) or (to is not None and ast.dump(to) == ast.dump(node)):
                continue
            yield _swap(
                holder, field, place, to, line, f"{_text(node)} -> {_text(to) if to is not None else 'nothing'}"
            )
        for name in ("test",):
            test = getattr(node, name, None)
            if isinstance(node, ast.If | ast.IfExp) and isinstance(test, ast.AST):
                for value in (True, False):
                    what = f"if {_text(test)} -> if {value}"
                    yield _swap(node, name, None, _keeping(test, value), line, what)


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


def _all() -> Iterator[Mutant]:
    for file, module in FILES.items():
        tree = ast.parse(inspect.getsource(module))
        yield from (Mutant(file, at, inside, what, tree, *both) for at, inside, what, *both in _changes(tree))


@cache
def mutants() -> list[Mutant]:
    """Every mutant that changes something; AssertionError for a row of EQUIVALENT that is none any more.

    They are changes of one tree for each file, done only while the mutant runs.
    """
    known = [((m.file, m.inside, m.what), m) for m in _all()]
    stale = EQUIVALENT.keys() - dict(known).keys()
    assert not stale, f"no such mutant: {stale}"
    return [mutant for change, mutant in known if change not in EQUIVALENT]


@contextmanager
def changed(mutant: Mutant) -> Iterator[None]:
    """Run that mutant where the shipped code was."""
    mutant.do()
    try:
        with in_place(mutant.file, mutant.tree):
            yield
    finally:
        mutant.undo()


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
