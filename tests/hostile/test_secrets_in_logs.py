"""Passwords and tokens in text of others (logs, errors), in every form they are written in: none is left of them."""

import json
import re
import time
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.fixtures.tiers import each
from walproof.cli.main import main
from walproof.machine import redaction
from walproof.machine.redaction import HIDDEN, in_text, without_secrets

BEGIN, MIDDLE, END = "Anf4ng", "Gehe1m", "Schlu55"
PRINTABLE = "".join(map(chr, range(33, 127)))


def secrets(without: str = "", also: str = "") -> st.SearchStrategy[str]:
    """Passwords of any printable characters, with three parts to look for."""
    any_text = st.text(st.sampled_from([c for c in PRINTABLE + also if c not in without]), max_size=8)
    return st.tuples(any_text, any_text).map(lambda parts: f"{BEGIN}{parts[0]}{MIDDLE}{parts[1]}{END}")


def left(text: str) -> list[str]:
    """Which parts of a secret are still there."""
    return [part for part in (BEGIN, MIDDLE, END) if part in in_text(text)]


def doubled(secret: str) -> str:
    return secret.replace("'", "''")


def escaped(secret: str) -> str:
    return secret.replace("\\", "\\\\").replace("'", "\\'")


def spaced(secret: str) -> str:
    return secret.replace("\\", "\\\\").replace("'", "\\'").replace(" ", "\\ ")


QUOTED: dict[str, Callable[[str], str]] = {
    "standard string": lambda s: f"ALTER ROLE x PASSWORD '{doubled(s)}'",
    "without a space": lambda s: f"ALTER ROLE x PASSWORD'{doubled(s)}' VALID UNTIL 'infinity'",
    "escape string": lambda s: f"create role x login password E'{escaped(s)}' superuser",
    "escape string, quotes doubled": lambda s: f"PASSWORD e'{doubled(s.replace(chr(92), chr(92) * 2))}';",
    "unicode string": lambda s: f"PASSWORD U&'{doubled(s)}';",
    "connection string": lambda s: f"host=a password='{escaped(s)}' user=u",
    "connection string in SQL": lambda s: (
        f"CONNECTION 'host=a password=''{escaped(s).replace(chr(39), chr(39) * 2)}'' user=u'"
    ),
    "unquoted, escaped": lambda s: f"host=a password={spaced(s)} user=u",
    "JSON": lambda s: json.dumps({"user": "u", "password": s, "x": 1}),
    "JSON in JSON": lambda s: json.dumps({"log": json.dumps({"token": s, "x": 1})}, separators=(",", ":")),
    "Python's dictionary": lambda s: repr({"user": "u", "password": s, "x": 1}),
    "options of a user mapping": lambda s: f"OPTIONS (user 'u', password '{doubled(s)}')",
    "of MySQL": lambda s: f"CREATE USER u IDENTIFIED BY '{doubled(s)}'",
    "arrow": lambda s: f"dblink(user => 'u', password => '{doubled(s)}')",
    "cut off": lambda s: f"ALTER ROLE x PASSWORD '{doubled(s)}",
    "cut off, escaped": lambda s: f"ALTER ROLE x PASSWORD E'{escaped(s)}",
}
WORDS: dict[str, Callable[[str], str]] = {
    "keyword": lambda s: f"host=a password={s} user=u",
    "keyword within a setting": lambda s: f"primary_conninfo = 'user=r password={s}'",
    "environment": lambda s: f"PGPASSWORD={s} psql",
    "key of AWS": lambda s: f"aws_secret_access_key={s}",
    "key of pgBackRest": lambda s: f"repo1-s3-key-secret={s}",
    "key of an API": lambda s: f"api_key: {s}",
    "pwd": lambda s: f"Uid=u;Pwd={s}",
    "passphrase": lambda s: f"passphrase={s}",
    "token of YAML": lambda s: f"  token: {s}",
    "token": lambda s: f"token={s}",
    "token of OAuth": lambda s: f"access_token={s}, expires",
    "token header": lambda s: f"X-Auth-Token: {s}",
    "bearer": lambda s: f"-H 'Authorization: Bearer {s}'",
    "bearer of JSON": lambda s: f'{{"authorization":"Bearer {s}"}}',
    "bearer in a list": lambda s: f"{{'Authorization': ['Bearer {s}']}}",
    "bearer alone": lambda s: f"sent bearer {s} to db1",
    "basic": lambda s: f"Authorization: Basic {s}",
    "basic alone": lambda s: f"Basic {s}",
    "basic in small letters": lambda s: f"basic {s}",
    "no scheme": lambda s: f"authorization: {s} accepted",
    "proxy": lambda s: f"Proxy-Authorization = {s}",
}


@each(QUOTED.values())
@given(secret=secrets(also=" "))
@example(secret=f"{BEGIN}\\'{MIDDLE}'{END}")
@example(secret=f"{BEGIN}','{MIDDLE}$${END}\\")
def test_nothing_is_left_of_a_quoted_password(written: Callable[[str], str], secret: str) -> None:
    assert left(f"LOG: {written(secret)}") == []


@each(WORDS.values())
@given(secret=secrets())
@example(secret=f"{BEGIN}','{MIDDLE}&x={END}")
def test_nothing_is_left_of_a_password_that_is_one_word(written: Callable[[str], str], secret: str) -> None:
    assert left(f"LOG: {written(secret)}") == []


@given(
    secrets(without="$"),
    st.sampled_from(["", "a", "tag_1"]),
    st.sampled_from(["PASSWORD ", "password", "Password\n\t"]),
)
def test_nothing_is_left_of_a_password_between_dollars(secret: str, tag: str, keyword: str) -> None:
    assert left(f"ALTER ROLE x {keyword}${tag}${secret}${tag}$ LOGIN") == []
    assert left(f"ALTER ROLE x {keyword}${tag}${secret}") == []


@given(secrets(), st.sampled_from(["http", "postgresql", "postgres+psycopg2"]))
@example(f"{BEGIN}@{MIDDLE}@{END}", "postgresql")
def test_nothing_is_left_of_a_password_in_a_url_with_an_at_within(secret: str, scheme: str) -> None:
    text = f"cannot reach {scheme}://u:{secret}@10.0.0.1:5432/app and so on"
    assert left(text) == []
    assert in_text(text) == f"cannot reach {scheme}://u:{HIDDEN}@10.0.0.1:5432/app and so on"


@given(secrets(without="&"))
def test_nothing_is_left_of_a_password_in_the_query_of_a_url(secret: str) -> None:
    text = f"GET /x?user=u&sslpassword={secret}&sslmode=require HTTP/1.1"
    assert left(text) == []
    assert in_text(text).endswith("&sslmode=require HTTP/1.1")


@each([*QUOTED.values(), *WORDS.values()])
@given(st.text(st.sampled_from("abcXYZ019_-."), max_size=8))
def test_what_stands_around_it_is_kept(written: Callable[[str], str], secret: str) -> None:
    text = f"2026-11-25 07:15:38 UTC LOG: {written(MIDDLE + secret)}\nLOG: and the next line"
    assert MIDDLE not in in_text(text)
    assert in_text(text).startswith("2026-11-25 07:15:38 UTC LOG: ")
    assert in_text(text).endswith("\nLOG: and the next line")
    assert len(in_text(text)) > len(text) - len(MIDDLE + secret) - 20


ORDINARY = (
    'FATAL:  password authentication failed for user "u"',
    "DETAIL:  Connection matched pg_hba.conf line 95",
    "user's password's length is too short",
    "password_encryption = 'scram-sha-256'",
    "ALTER ROLE u PASSWORD NULL;",
    "Basic authentication is off",
    'WWW-Authenticate: Basic realm="patroni"',
    "a basic backup, and a basic check",
    "Bearer authentication",
    'syntax error at or near token "SELECT"',
    "max_tokens=12, tokens: 4",
    "connection authorized: user=postgres database=app application_name=psql",
    "SET SESSION AUTHORIZATION 'u'",
    "GET http://10.0.0.1:8008/patroni HTTP/1.1",
    "http://[fd00::1]:8008/cluster",
    "mail to dba@example.org at 12:30",
    "$1 = 'x', $2 = $$y$$",
    "postgres@app LOG:  duration: 0.5 ms  statement: COMMIT",
    "INFO: no action. I am (n1), the leader with the lock",
    '{"level":"info","msg":"took too long","took":"1.2s","request":"key:\\"/service/x/leader\\""}',
)


@given(st.lists(st.sampled_from(ORDINARY), max_size=6), st.sampled_from(["\n", " ", "\r\n"]))
def test_text_without_a_secret_stays_as_it_is(lines: list[str], between: str) -> None:
    text = between.join(lines)
    assert in_text(text) == text


@each([
    "a.a-" * 50_000, "a://b:" * 30_000, "?token" * 30_000, "password $x$" * 20_000, "password='" * 20_000,
    "password=\\'" * 20_000, "authorization=" + '"' * 200_000 + "; x",
])  # fmt: skip
@pytest.mark.timeout(60)
def test_a_strangers_log_does_not_keep_it_busy(text: str) -> None:
    in_text(text)


def quickest(task: Callable[[str], str], text: str) -> float:
    def spent() -> float:
        begin = time.process_time()
        task(text)
        return time.process_time() - begin

    return min(spent() for _ in range(5))


# rows: quotes, brackets, schemes, colons, identified by, arrow
@each([
    (in_text, "authorization=", '"', "; x"),
    (in_text, "authorization: ", "('", ","),
    (without_secrets, "", "://", ""),
    (without_secrets, "", ":", ""),
    (in_text, "IDENTIFIED BY", " ", "x"),
    (in_text, "password =>", " ", "\n"),
])  # fmt: skip
def test_sixteen_times_the_text_is_not_the_square_of_it(
    task: Callable[[str], str], begin: str, repeated: str, end: str
) -> None:
    # In proportion it is 16 times the work, by the square of it 256 times.
    short, long = (quickest(task, begin + repeated * many + end) for many in (750, 12_000))
    assert long < 80 * max(short, 1e-5)


def test_a_servers_words_fill_no_screen(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["doctor", "--target", "x" * 100_000 + ".toml"])
    assert 2_000 < len(capsys.readouterr().err) < 5_000


def test_no_name_of_a_secret_is_looked_for_again_at_each_letter_of_a_word() -> None:
    """A statement of any role stands in the log: with a repetition in a name, scram_scram_… took minutes."""
    assert not re.search(r"[+*]", redaction._SECRET)
    text = "scram_" * 20_000
    assert in_text(text) == text
