"""Which commit levels a function's source sets for its transaction: by SET, set_config, or either by EXECUTE. Pure.

The word in a comment, a message or a column's name sets nothing. A level in a text built at run time stays unseen.
"""

import re

from walproof.errors import UsageError
from walproof.load.pgbench_script import Statement, script_parts
from walproof.model.guarantee import Level

COMPUTED = "a level it computes"
_SETTING = "SYNCHRONOUS_COMMIT"
_SPELLINGS = {"true": "on", "yes": "on", "1": "on", "false": "off", "no": "off", "0": "off"}
_BEGINS = ("BEGIN", "THEN", "ELSE", "LOOP")
"""What a statement of PL/pgSQL may stand behind without a semicolon."""
_COMMENT = re.compile(r"^[^\S\n]*(?:#|--|//).*$", re.MULTILINE)
_CALL = re.compile(
    r"\bset\s+(?:local\s+|session\s+)?synchronous_commit\s*(?:=|\bto\b)\s*'?(\w*)"
    r"|\bset_config\s*\(\s*'synchronous_commit'\s*,\s*'?(\w*)",
    re.IGNORECASE,
)
_LONGEST, _DEEPEST = 100_000, 8
"""Characters of a source, and EXECUTE within EXECUTE, that are read as statements: any user may write a function."""


def levels_set(source: str, language: str, depth: int = 0) -> tuple[str, ...]:
    """The levels, COMPUTED for one that is no constant; none where it sets none.

    >>> levels_set("BEGIN PERFORM set_config('synchronous_commit', 'off', true); END", "plpgsql")
    ('off',)
    >>> levels_set("-- SET synchronous_commit = off\\nBEGIN UPDATE t SET synchronous_commit = 'off'; END", "plpgsql")
    ()
    """
    if _SETTING not in source.upper():
        return ()
    if language not in ("sql", "plpgsql") or len(source) > _LONGEST or depth > _DEEPEST:
        calls = _CALL.finditer(_COMMENT.sub("", source))
        return tuple(dict.fromkeys(_level(call[1] or call[2] or "") for call in calls))
    try:
        parts = script_parts(source).statements
    except UsageError:
        return ()
    return tuple(dict.fromkeys(level for one in parts for level in _set_by(one, depth)))


def _set_by(one: Statement, depth: int) -> tuple[str, ...]:
    words = tuple(word.upper() for word in one.words)
    bodies = tuple(_unquoted(body) for body in one.bodies)
    if "EXECUTE" in words or words[:1] == ("DO",):
        return tuple(level for body in bodies for level in levels_set(body, "plpgsql", depth + 1))
    if "SET_CONFIG" in words:
        named = [i for i, body in enumerate(bodies) if body.strip().upper() == _SETTING]
        return tuple(_level("".join(bodies[i + 1 : i + 2])) for i in named)
    for at, word in enumerate(words):
        if word != "SET" or (at and words[at - 1] not in _BEGINS):
            continue
        after = [w for w in words[at + 1 : at + 5] if w not in ("LOCAL", "SESSION", "TO")]
        if after[:1] == [_SETTING]:
            return (_level("".join(after[1:2]) or "".join(bodies[:1])),)
    return ()


def _unquoted(text: str) -> str:
    """The content of a string constant; what stood between dollar quotes is as it is."""
    quoted = re.fullmatch(r"[eE]?'(.*)'", text, re.DOTALL)
    return quoted[1].replace("''", "'") if quoted else text


def _level(text: str) -> str:
    known = _SPELLINGS.get(text.strip().lower(), text.strip().lower())
    return known if known in set(Level) else COMPUTED
