r"""Names, values and operators of a server inside the SQL files. Pure.

What is written is printable ASCII alone, and every backslash of a value is doubled inside E'': so a file is read alike
under any standard_conforming_strings and any client encoding, and no psql variable or meta-command can begin in it."""

import re
from dataclasses import dataclass

_NOT_PLAIN = re.compile(r"[^ -~]|\\")
_OPERATOR = re.compile(r"(?!.*(?:--|/\*))[-+*/<>=~!@#%^&|`?]{1,63}")


class UnquotableError(ValueError):
    """No SQL can say this text in that database."""


@dataclass(frozen=True, slots=True)
class Quoting:
    """How text is said in one database; `is_sql_ascii`: its encoding is SQL_ASCII, which knows bytes, no letters."""

    is_sql_ascii: bool = False

    def name(self, text: str) -> str:
        r"""An identifier; UnquotableError where the database could not have it.

        >>> print(Quoting().name('a"b'), Quoting().name("a\nb"))
        "a""b" U&"a\000Ab"
        """
        if not self.can_name(text):
            raise UnquotableError(f"no SQL can name {text[:80]!r} in that database")
        quoted = text.replace('"', '""')
        if not _NOT_PLAIN.search(quoted):
            return f'"{quoted}"'
        return f'U&"{_NOT_PLAIN.sub(_in_name, quoted)}"'

    def can_name(self, *texts: str) -> bool:
        """Whether `name` can say all of these."""
        return all(text and "\0" not in text and (text.isascii() or not self.is_sql_ascii) for text in texts)

    def value(self, text: str | None) -> str:
        r"""A literal of unknown type, or NULL; UnquotableError for a zero byte.

        >>> print(Quoting().value("a'b"), Quoting().value("\\! id"), Quoting(is_sql_ascii=True).value("\xe9"))
        'a''b' E'\\! id' E'\xC3\xA9'
        """
        if text is None:
            return "NULL"
        if "\0" in text:
            raise UnquotableError("a value holds a zero byte")
        quoted = text.replace("'", "''")
        if not _NOT_PLAIN.search(quoted):
            return f"'{quoted}'"
        return f"E'{_NOT_PLAIN.sub(_in_bytes if self.is_sql_ascii else _in_value, quoted)}'"

    def table(self, schema: str, name: str) -> str:
        """A table's or sequence's name with its schema."""
        return f"{self.name(schema)}.{self.name(name)}"


def _in_name(found: re.Match[str]) -> str:
    letter = found[0]
    return "\\\\" if letter == "\\" else f"\\{ord(letter):04X}" if ord(letter) < 1 << 16 else f"\\+{ord(letter):06X}"


def _in_value(found: re.Match[str]) -> str:
    letter = found[0]
    if letter in "\\\n\t":
        return {"\\": "\\\\", "\n": "\\n", "\t": "\\t"}[letter]
    return f"\\u{ord(letter):04X}" if ord(letter) < 1 << 16 else f"\\U{ord(letter):08X}"


def _in_bytes(found: re.Match[str]) -> str:
    return "".join(f"\\x{byte:02X}" for byte in found[0].encode()) if not found[0].isascii() else _in_value(found)


def is_operator(text: str) -> bool:
    """Whether PostgreSQL could have an operator of that name; none of them begins a comment.

    >>> [is_operator(one) for one in ("=", "<->", "= 1) --", "/*", "\\\\!", ":x")]
    [True, True, False, False, False, False]
    """
    return _OPERATOR.fullmatch(text) is not None


def plain_table(schema: str, name: str) -> str:
    """The name as the input of regclass reads it."""
    return ".".join('"' + one.replace('"', '""') + '"' for one in (schema, name))
