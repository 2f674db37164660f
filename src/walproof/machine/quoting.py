"""Text that is shown to be pasted, with every field of it quoted by the syntax in which it stands.

A name of a cluster, a member, a slot or a role is a stranger's: in a shell, in SQL, in YAML it is one word and no more.
"""

import json
import re
import shlex
from collections.abc import Callable, Mapping
from string import Formatter
from typing import Any

_PLAIN = re.compile(r"[A-Za-z0-9_.:/@%+=,\[\]-]+")
_YAML_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*|[1-9][0-9]{0,8}|0")
_YAML_WORDS = frozenset(("true", "false", "yes", "no", "on", "off", "y", "n", "null", "nan", "inf"))


_STATEMENT = re.compile(r"(?:[A-Za-z0-9_.,()\[\] ]|\"[^\"]*+\")++;?")
"""Words, names in quotes, and the list of a function's types."""


class Pasted(str):
    """Text to paste whose fields are quoted; only `pasted` makes one of a template."""

    __slots__ = ()


def shell(value: object) -> str:
    """One word of a shell's line.

    >>> shell("n2; reboot")
    "'n2; reboot'"
    """
    return shlex.quote(str(value))


def argument(value: object) -> str:
    """One word of a shell's line that is no option, whatever it begins with.

    >>> argument("n2"), argument("--kubeconfig=x")
    ('n2', '-- --kubeconfig=x')
    """
    return f"{'-- ' * str(value).startswith('-')}{shell(value)}"


def path(value: object) -> str:
    """A path as one word of a shell's line."""
    text = str(value)
    return shell(f"./{text}" if text.startswith("-") else text)


def sql_text(value: object) -> str:
    r"""A string of SQL, whatever standard_conforming_strings is (PQescapeLiteral); on one line.

    >>> print(sql_text("it's"), sql_text("a\\'b\n"))
    'it''s' E'a\\''b\u000A'
    """
    text = str(value).replace("'", "''")
    if "\\" not in text and text.isprintable():
        return f"'{text}'"
    return "E'" + _escaped(text.replace("\\", "\\\\"), "\\u{:04X}", "\\U{:08X}") + "'"


def sql_name(value: object) -> str:
    r"""An identifier of SQL, on one line.

    >>> print(sql_name('a"b'), sql_name("a\nb"))
    "a""b" U&"a\000Ab"
    """
    text = str(value).replace('"', '""')
    if text.isprintable():
        return f'"{text}"'
    return 'U&"' + _escaped(text.replace("\\", "\\\\"), "\\{:04X}", "\\+{:06X}") + '"'


def statement(value: object) -> str:
    """A statement that a server composed of names: itself where it is one and no more, else quoted.

    >>> print(statement('ALTER ROLE "a b" RESET x;'), statement("ALTER ROLE a; DROP TABLE t;"))
    ALTER ROLE "a b" RESET x; 'ALTER ROLE a; DROP TABLE t;'
    """
    text = str(value)
    return text if text.isprintable() and _STATEMENT.fullmatch(text) else shell(text)


def yaml(value: object) -> str:
    """A scalar of YAML that is this text, or this number or truth.

    >>> yaml("n1"), yaml("on"), yaml("a: b #"), yaml(3), yaml(True)
    ('n1', "'on'", "'a: b #'", '3', 'true')
    """
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    text = str(value)
    if _YAML_PLAIN.fullmatch(text) and text.lower() not in _YAML_WORDS and not text.isdecimal():
        return text
    return yaml_text(text)


def yaml_text(value: object) -> str:
    """A scalar of YAML that is a text, in quotes, whatever it looks like.

    >>> yaml_text("10")
    "'10'"
    """
    text = str(value)
    return "'" + text.replace("'", "''") + "'" if text.isprintable() else toml(text)


def toml(value: object) -> str:
    r"""A basic string of TOML, which YAML takes too.

    >>> print(toml('a"\nb'))
    "a\"\u000ab"
    """
    quoted = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return '"' + _escaped(quoted, "\\u{:04x}", "\\U{:08x}") + '"'


def conf(value: object) -> str:
    r"""A value of postgresql.conf (guc-file.l), on one line.

    >>> print(conf("it's C:\\x"))
    'it''s C:\\x'
    """
    text = str(value).replace("\\", "\\\\").replace("'", "''")
    return "'" + text.replace("\n", "\\n").replace("\r", "\\r") + "'"


def ini(value: object) -> str:
    """A value of pgbouncer.ini, which ends with its line: what is no plain word is refused by ValueError."""
    if not _PLAIN.fullmatch(str(value)):
        raise ValueError(f"{str(value)[:80]!r} cannot stand in an ini file")
    return str(value)


def comment(value: object) -> str:
    """The rest of a comment's line: what would end the line is replaced."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(value))


def words(value: object) -> str:
    """Within a sentence, which may be pasted too: itself where a shell takes nothing of it for more, else quoted."""
    text = str(value)
    return text if _PLAIN.fullmatch(text) else shell(text)


def composed(value: object) -> str:
    """A text that `pasted` made, or a number; TypeError for anything else."""
    if isinstance(value, Pasted | int | float):
        return str(value)
    raise TypeError(f"{str(value)[:80]!r} is not quoted for the syntax in which it would stand")


_SYNTAXES = (
    shell,
    argument,
    path,
    sql_text,
    sql_name,
    statement,
    yaml,
    yaml_text,
    toml,
    conf,
    ini,
    comment,
    words,
    composed,
)
QUOTING: Mapping[str, Callable[[object], str]] = {one.__name__: one for one in _SYNTAXES}
"""By the name that a placeholder says after its colon."""


class _Quoting(Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec not in QUOTING:
            raise ValueError(f"a placeholder declares no syntax: {format_spec!r} is none of {', '.join(QUOTING)}")
        return QUOTING[format_spec](value)

    def convert_field(self, value: Any, conversion: Any) -> Any:
        if conversion is not None:
            raise ValueError("a placeholder declares its syntax after a colon, and no conversion")
        return value


def pasted(template: str, /, **fields: object) -> Pasted:
    """The template with each field quoted by the syntax that its placeholder declares; ValueError where one has none.

    >>> pasted("kubectl delete pod {name:argument}", name="pg; reboot")
    "kubectl delete pod 'pg; reboot'"
    """
    return Pasted(_Quoting().vformat(template, (), fields))


def _escaped(text: str, short: str, long: str) -> str:
    """With what is not printed as its number in this notation."""
    return "".join(
        letter if letter.isprintable() else (short if ord(letter) < 0x10000 else long).format(ord(letter))
        for letter in text
    )
