"""Names of standbys as PostgreSQL reads, compares and shows them: the list's grammar, and application_name.

Read in PostgreSQL: syncrep_scanner.l, syncrep_gram.y and check_synchronous_standby_names (syncrep.c), pg_strcasecmp
(pgstrcasecmp.c), check_application_name (variable.c), pg_clean_ascii (string.c). The list is the same in 14 to 18."""

import re
import string
from collections.abc import Iterable

from walproof.errors import UsageError

NO_STANDBYS = ("pg_receivewal", "pg_basebackup", "pg_recvlogical", "barman_receive_wal", "walproof")
"""Programs that stream and are no standby, by the name they stream under."""
SHOWN = 63
"""Bytes of a name that PostgreSQL keeps (NAMEDATALEN - 1), and shows once what is no printable ASCII is replaced."""
_TOKEN = re.compile(
    r'(?P<space>[ \t\n\r\f\v]+)|"(?P<quoted>(?:[^"]|"")*+)"'
    r"|(?P<word>[A-Za-z_\u0080-\U0010ffff][A-Za-z_\u0080-\U0010ffff0-9$]*)"
    r"|(?P<number>[0-9]+)|(?P<star>\*)|(?P<mark>[,()])"
)
_KEYWORDS = {"any": "A", "first": "F"}
_SHAPE = re.compile(r"(?P<head>[AF]?n\()?[nx](?:,[nx])*(?(head)\))")
"""A list with or without its head: A and F are the keywords, n a number, which may be a name too, x another name."""
_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
_HOST_AND_PORT = re.compile(r".+:[0-9]+")


def folded(name: str) -> str:
    """The name as it is compared: only ASCII letters have no case.

    >>> folded("N2") == folded("n2"), folded("É") == folded("é")
    (True, False)
    """
    return name.translate(_LOWER)


def quoted(name: str) -> str:
    """The name as it stands in a list; `*` has no quotes because quotes change nothing: it matches every standby."""
    return name if name == "*" else '"' + name.replace('"', '""') + '"'


def parsed(text: str) -> tuple[str, int, tuple[str, ...]]:
    """ANY or FIRST, how many, and the names of a list that is not empty; UsageError where PostgreSQL refuses it.

    >>> parsed('2 (a, "b,""c", 3, *)')
    ('FIRST', 2, ('a', 'b,"c', '3', '*'))
    """
    shape, values = _scanned(text)
    match = _SHAPE.fullmatch(shape)
    if match is None:
        raise _refused(text, "its grammar is [ANY or FIRST] number (name, …) or name, …")
    head = match["head"] or ""
    number = _as_int(values[len(head) - 2]) if head else 1
    if number <= 0:
        raise _refused(text, "the number of standbys must be greater than 0")
    names = tuple(value for kind, value in zip(shape[len(head) :], values[len(head) :], strict=True) if kind in "nx")
    return "ANY" if head.startswith("A") else "FIRST", number, names


def _scanned(text: str) -> tuple[str, list[str]]:
    """Its tokens: a letter each (see _SHAPE), and their text."""
    shape, values, at = "", [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise _refused(text, f"what follows after {at} characters is no name (one with other characters is quoted)")
        at, kind, value = match.end(), match.lastgroup, match[match.lastgroup or 0]
        if kind == "space":
            continue
        letter = {"mark": value, "number": "n", "word": _KEYWORDS.get(folded(value), "x")}.get(kind or "", "x")
        shape += letter
        values.append(value.replace('""', '"') if kind == "quoted" else value)
    return shape, values


def _as_int(digits: str) -> int:
    """atoi of the C library: strtol, cut to 32 bits."""
    return (min(int(digits.lstrip("0")[:20] or "0"), 2**63 - 1) + 2**31) % 2**32 - 2**31


def _refused(text: str, why: str) -> UsageError:
    return UsageError(f"PostgreSQL refuses the standby names {text!r}: {why}", 'ANY 1 ("standby1", "standby2")')


def streamed_name(application_name: str, server_version: int) -> str:
    """The name that a leader of that server_version_num compares for a standby with this application_name.

    pg_stat_replication shows 63 characters of it.

    >>> streamed_name("é", 180000), streamed_name("é", 150000)
    ('\\\\xc3\\\\xa9', '??')
    """
    other = "\\x{:02x}" if server_version >= 160000 else "?"
    kept = application_name.encode()[:SHOWN]
    return "".join(chr(byte) if 32 <= byte <= 126 else other.format(byte) for byte in kept)


def why_no_name(name: str) -> str:
    """Why a list cannot tell the standby that streams under this name from others, one clause; "" where it can."""
    if name in ("", "walreceiver"):
        return "a standby without cluster_name and application_name streams as that"
    if name == "*":
        return "there it counts whatever streams"
    cut = len(name) == SHOWN and "\\x" in name
    return "pg_stat_replication shows no more than 63 characters of it" if cut else ""


def listed(names: Iterable[str]) -> tuple[str, ...]:
    """The names in order, each once as it is compared; UsageError for one that names no one standby, and for none."""
    by_folded = {folded(name): name for name in names}
    if not by_folded:
        raise UsageError("no standby has a name to put into synchronous_standby_names", "set cluster_name on each")
    for name in by_folded.values():
        if why := why_no_name(name):
            raise UsageError(
                f"{name!r} cannot stand in synchronous_standby_names: {why}",
                "set cluster_name on that standby, or application_name in its primary_conninfo",
            )
    return tuple(sorted(by_folded.values()))


def is_host_and_port(label: str) -> bool:
    """Whether a target called a member so because it has no name of its own.

    >>> is_host_and_port("10.0.0.2:5433"), is_host_and_port("east:send")
    (True, False)
    """
    return _HOST_AND_PORT.fullmatch(label) is not None
