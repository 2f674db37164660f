"""Texts made to be slow: each is read in time of its length. The square of it would end with the limit of a test."""

from collections.abc import Callable

import pytest

from tests.fixtures.tiers import every
from walproof.errors import UsageError
from walproof.machine import redaction, untrusted
from walproof.model import guarantee, units
from walproof.model.access_path import AccessPath
from walproof.model.declared import Places
from walproof.targets.files import settings
from walproof.targets.files.access_path import ClientsWay, access_path
from walproof.targets.files.pieces import kind_of
from walproof.targets.files.reading import Reading
from walproof.targets.files.sources import Source
from walproof.targets.sql.settings import same_value

LONG = 12_000
BEGINS = ("", "a", "1", "host=a ")
REPEATED = (
    "a", " ", "'", '"', "-", ".", "\\", "a'", "a ", "= ", "''", "host=a ", "host=", "postgresql://a/b ", "://", "a://",
    "?a", "token ", "token=)", "basic ", "bearer ", "$a$", "(", "1", "1 ", "{", "#", ":", "n2,", "x=1 ", "export ", "$",
    "\t", "E'", "password='",
)  # fmt: skip
ENDS = ("", "'")


def strings(text: str) -> None:
    ClientsWay().read_strings(Source("x", text), Reading())


def proxies(text: str) -> AccessPath:
    return access_path(f"listen a\n {text}\nlisten b\n", f"[databases]\na = {text}\n{text}\n[pgbouncer]\n{text}\n")


READERS: dict[str, Callable[[str], object]] = {
    "a line of postgresql.conf": lambda text: settings.LINE.fullmatch(text.strip()),
    "a duration of postgresql.conf": lambda text: settings.fact_of("wal_sender_timeout", text),
    "a list of standbys": guarantee.read_standby_names,
    "the kind of a file": lambda text: [kind_of(name, text) for name in ("a.env", "a.yml", "postgresql.conf", "x")],
    "connection strings": strings,
    "haproxy.cfg and pgbouncer.ini": proxies,
    "the keys of a sentence": lambda text: Places().of([text]),
    "secrets in a text": redaction.in_text,
    "an address": redaction.without_secrets,
    "a duration": units.duration_s,
    "a setting of a server": lambda text: same_value(text, "8192", "kB"),
    "a text on one line": untrusted.one_line,
}


@pytest.mark.parametrize("reader", READERS)
def test_one_long_line_is_read_in_time_of_its_length(reader: str) -> None:
    def check(begin: str) -> None:
        for repeated in REPEATED:
            for end in ENDS:
                text = begin + repeated * (LONG // len(repeated)) + end
                try:
                    READERS[reader](text)
                except (UsageError, ValueError):
                    continue

    every(BEGINS, check)
