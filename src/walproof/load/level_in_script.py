r"""The commit level put into a script's transaction by SET LOCAL, after its BEGIN, everything else untouched. Pure.

Only a script that is surely one transaction is taken; any other is refused with the reason, never changed in silence.
"""

import re

from walproof.errors import UsageError
from walproof.load.script_parts import ScriptParts, Statement, script_parts
from walproof.model.guarantee import Level

_ENDS = ("COMMIT", "END")
_BACK = ("ROLLBACK", "ABORT")
_NOT_WITHIN = ("VACUUM", "CALL", "CHECKPOINT")
_ENDS_WITHIN = re.compile(r"\b(COMMIT|ROLLBACK)\b", re.IGNORECASE)
_OWN_LEVEL = re.compile(r"\bsynchronous_commit\b", re.IGNORECASE)
_HINT = "write one transaction a script, BEGIN; … END;, or measure it without a pool and without --mix"


def check_script(text: str, name: str) -> ScriptParts:
    """The script's parts; UsageError when it holds no SQL, cannot be read surely, or sets the commit level itself."""
    parts = script_parts(text)
    if not parts.statements:
        raise UsageError(f"the script {name} holds no SQL", "see pgbench's manual, Custom Scripts")
    for one in parts.statements:
        if _sets_level(one):
            raise UsageError(
                f"the script {name} sets synchronous_commit itself, so every level would be measured as that one",
                "take that statement out: walproof sets the level",
            )
    return parts


def _sets_level(one: Statement) -> bool:
    if one.words[:2] in (("RESET", "ALL"), ("DISCARD", "ALL")):
        return True
    runs = one.words[:1] in (("SET",), ("RESET",), ("DO",), ("CREATE",)) or "SET_CONFIG" in one.words
    return runs and any(map(_OWN_LEVEL.search, (*one.bodies, *one.words)))


def with_level(script: str, level: Level, *, combined: bool) -> str:
    r"""The script with its transaction at that level; UsageError, with the reason, unless it is surely one transaction.

    A script of one statement without BEGIN becomes a transaction. `combined` sends BEGIN and SET LOCAL together, which
    only the simple protocol can: one round trip less.

    >>> print(with_level("BEGIN ISOLATION LEVEL SERIALIZABLE; INSERT INTO t VALUES (1); END;", Level.ON, combined=True))
    BEGIN ISOLATION LEVEL SERIALIZABLE\;SET LOCAL synchronous_commit TO on; INSERT INTO t VALUES (1); END;
    """
    parts = script_parts(script)
    _refuse_what_cannot_be_known(parts)
    setting = f"SET LOCAL synchronous_commit TO {level}"
    begins = [one for one in parts.statements if _begins(one)]
    if begins:
        begin = _the_transaction(parts.statements, begins)
        separator = "\\;" if combined or begin.joined else ";\n"
        return script[: begin.end] + separator + setting + script[begin.end :]
    first, last = _as_one(parts.statements)
    opening = "BEGIN" + ("\\;" if combined else ";\n") + setting + ";\n"
    semicolon = "" if last.closed else ";"
    rest = script[first.start : last.end] + semicolon + script[last.end :].rstrip()
    return script[: first.start] + opening + rest + "\nEND;"


def _begins(one: Statement) -> bool:
    return one.words[:1] == ("BEGIN",) or one.words[:2] == ("START", "TRANSACTION")


def _refused(reason: str) -> UsageError:
    return UsageError(f"the level cannot be set inside this script's transactions: {reason}", _HINT)


def _refuse_what_cannot_be_known(parts: ScriptParts) -> None:
    for one in parts.statements:
        first = one.words[0] if one.words else ""
        if first in _ENDS and "CHAIN" in one.words and "NO" not in one.words:
            raise _refused(f"{first} AND CHAIN begins a transaction of its own")
        if one.words[:2] == ("PREPARE", "TRANSACTION") or "PREPARED" in one.words[:2]:
            raise _refused("it uses prepared transactions")
        if first == "ABORT" or (first == "ROLLBACK" and "TO" not in one.words):
            raise _refused(f"it ends in {first}")
        if first in ("DO", "CREATE") and any(map(_ENDS_WITHIN.search, one.bodies)):
            raise _refused(f"a body of its {first} commits or rolls back")
        if first == "CREATE" and "ATOMIC" in one.words:
            raise _refused("it defines a function with BEGIN ATOMIC")
        if one.guarded and (_begins(one) or first in _ENDS):
            raise _refused(f"its {first} stands between \\if and \\endif")


def _the_transaction(statements: tuple[Statement, ...], begins: list[Statement]) -> Statement:
    """The BEGIN of a script that is one transaction from its first statement to its last."""
    if len(begins) > 1:
        raise _refused(f"it holds {len(begins)} transactions")
    ends = [one for one in statements if one.words[:1] and one.words[0] in _ENDS]
    if len(ends) != 1 or ends[0] is not statements[-1]:
        raise _refused("its transaction does not end once, with its last statement")
    if begins[0] is not statements[0]:
        raise _refused("a statement before BEGIN commits by itself")
    return begins[0]


def _as_one(statements: tuple[Statement, ...]) -> tuple[Statement, Statement]:
    r"""First and last statement of a script without BEGIN, when all of it is sent, and so committed, at once."""
    apart = [one for one in statements[:-1] if not one.joined]
    if apart:
        raise _refused(f"it has no BEGIN, so each of its {len(apart) + 1} statements commits by itself")
    if statements[0].words[:1] and statements[0].words[0] in (*_ENDS, *_NOT_WITHIN):
        raise _refused(f"{statements[0].words[0]} needs, or may end, a transaction of its own")
    if any(one.guarded for one in statements):
        raise _refused("its only statement stands between \\if and \\endif")
    return statements[0], statements[-1]
