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
_COMMENT = re.compile(r"^\s*(?:#|--|//).*$", re.MULTILINE)
_CALL = re.compile(
    r"\bset\s+(?:local\s+|session\s+)?synchronous_commit\s*(?:=|\bto\b)\s*'?(\w*)"
    r"|\bset_config\s*\(\s*'synchronous_commit'\s*,\s*'?(\w*)",
    re.IGNORECASE,
)


def levels_set(source: str, language: str) -> tuple[str, ...]:
    """The levels, COMPUTED for one that is no constant; none where it sets none.

    >>> levels_set("BEGIN PERFORM set_config('synchronous_commit', 'off', true); END", "plpgsql")
    ('off',)
    >>> levels_set("-- SET synchronous_commit = off\\nBEGIN UPDATE t SET synchronous_commit = 'off'; END", "plpgsql")
    ()
    """
    if _SETTING not in source.upper():
        return ()
    if language not in ("sql", "plpgsql"):
        calls = _CALL.finditer(_COMMENT.sub("", source))
        return tuple(dict.fromkeys(_level(call[1] or call[2] or "") for call in calls))
    try:
        parts = script_parts(source).statements
    except UsageError:
        return ()
    return tuple(dict.fromkeys(level for one in parts for level in _set_by(one)))


def _set_by(one: Statement) -> tuple[str, ...]:
    words = tuple(word.upper() for word in one.words)
    bodies = tuple(_unquoted(body) for body in one.bodies)
    if "EXECUTE" in words or words[:1] == ("DO",):
        return tuple(level for body in bodies for level in levels_set(body, "plpgsql"))
    if "SET_CONFIG" in words:
        named = [i for i, body in enumerate(bodies) if body.strip().upper() == _SETTING]
        return tuple(_level("".join(bodies[i + 1 : i + 2])) for i in named)
    for at, word in enumerate(words):
        begun = max((i for i, begins in enumerate(words[:at]) if begins in _BEGINS), default=-1) + 1
        after = [w for w in words[at + 1 :] if w not in ("LOCAL", "SESSION", "TO")]
        if word == "SET" and begun == at and after[:1] == [_SETTING]:
            return (_level("".join(after[1:2]) or "".join(bodies[:1])),)
    return ()


def _unquoted(text: str) -> str:
    """The content of a string constant; what stood between dollar quotes is as it is."""
    quoted = re.fullmatch(r"[eE]?'(.*)'", text, re.DOTALL)
    return quoted[1].replace("''", "'") if quoted else text


def _level(text: str) -> str:
    known = _SPELLINGS.get(text.strip().lower(), text.strip().lower())
    return known if known in set(Level) else COMPUTED
