"""Connection parameters as libpq reads them from a DSN or service; a password goes into a private file only."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import dict_row

from walproof.errors import TargetError, UsageError
from walproof.load.open_session import hint_of_refused_database, open_session
from walproof.load.repeated_logins import LOGIN, first_answer
from walproof.machine.answering import answering
from walproof.model.session_settings import AS_PSYCOPG_READS, session_options
from walproof.model.standby_names import SHOWN, streamed_name
from walproof.model.topology import Endpoint

OPTIONS = (
    "sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl", "sslnegotiation", "channel_binding", "gssencmode",
    "krbsrvname", "require_auth", "requirepeer", "sslcrldir", "ssl_min_protocol_version", "ssl_max_protocol_version",
    "sslcertmode", "sslsni", "options",
)  # fmt: skip
_WORK_S = 600.0
"""A database made or dropped takes long on a slow disk."""
OLDEST, NEWEST = 140000, 190000


def streams_as(row: Mapping[str, Any]) -> str:
    """The name a member streams under, as pg_stat_replication shows it; a row of its cluster_name and walreceiver."""
    try:
        words = conninfo_to_dict(row.get("receiver_conninfo") or "")
    except psycopg.ProgrammingError:
        words = {}
    name = words.get("application_name") or words.get("fallback_application_name") or row.get("cluster_name") or ""
    return streamed_name(str(name), row.get("version") or NEWEST)[:SHOWN]


def conninfo_of(dsn: str, service: str, **more: str) -> str:
    """One libpq string of a DSN and a service."""
    words: dict[str, str] = {"service": service} if service else {}
    try:
        return make_conninfo(dsn, **{**words, **more})
    except psycopg.ProgrammingError:
        # libpq's own words quote the DSN, which may hold a password.
        raise UsageError("this is not a DSN: libpq cannot read it", "host=a,b user=postgres") from None


def resolved(dsn: str, service: str = "") -> Endpoint:
    """What a DSN or service means, as libpq itself reads it (PG* variables, pgpass and service file included).

    libpq resolves all that only for a connection, so one is started; it need not succeed. A Unix socket stays one.
    UsageError for a host with another hostaddr.
    """
    conninfo = conninfo_of(dsn, service, connect_timeout="2")
    raw = psycopg.pq.PGconn.connect_start(conninfo.encode())
    try:
        words = {o.keyword.decode(): o.val.decode() for o in raw.info if o.val}
        # What libpq would assume anyway is left out: an older pgbench may not know the word.
        assumed = _filled_in()
        given = {o.keyword.decode() for o in raw.info if o.val not in (None, o.compiled, assumed.get(o.keyword))}
    finally:
        raw.finish()
    _refuse_two_ways(words, conninfo_to_dict(conninfo))
    hosts = (words.get("host") or words.get("hostaddr") or "localhost").split(",")
    ports = (words.get("port") or "5432").split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    password = words.get("password", "")
    passfile = password_file(password) if password else words.get("passfile")
    if passfile and not os.path.exists(passfile):
        passfile = None
    options = tuple((name, words[name]) for name in OPTIONS if name in given)
    if any(p and not p.isdecimal() for p in ports):
        raise UsageError("the DSN's port is not a number", "host=a,b port=5432 user=postgres")
    pairs = tuple((h, int(p or 5432)) for h, p in zip(hosts, ports, strict=False))
    return Endpoint(pairs, words.get("dbname") or "postgres", words.get("user", ""), passfile, options)


def _refuse_two_ways(words: Mapping[str, str], written: Mapping[str, Any]) -> None:
    """UsageError where a host is named, and libpq would go to a hostaddr, perhaps of another server, in its place.

    Not where only the environment has one (PGHOSTADDR, PGSERVICE) and the DSN names a host: that is another cluster's.
    """
    host, address = words.get("host", ""), words.get("hostaddr", "")
    of_environment = "host" in written and not written.keys() & {"hostaddr", "service"}
    if host and address not in ("", host) and not of_environment:
        raise UsageError(
            f"host={host} and hostaddr={address} are both given: walproof goes where one name leads",
            f"leave one of them out of DSN, service and PG* variables; or write {host} as {address} in /etc/hosts",
        )


def _filled_in() -> dict[bytes, bytes | None]:
    """What libpq fills in, beyond the defaults that it lists, where neither DSN, service nor variable says anything."""
    listed = {o.keyword for o in psycopg.pq.Conninfo.get_defaults() if o.val}
    bare = psycopg.pq.PGconn.connect_start(b"host=/nonexistent hostaddr='' port=1")
    try:
        return {o.keyword: o.val for o in bare.info if o.keyword not in listed}
    finally:
        bare.finish()


def pgpass_line(password: str) -> str:
    """libpq's line of a password, for every server, database and user."""
    escaped = password.replace("\\", "\\\\").replace(":", "\\:")
    return f"*:*:*:*:{escaped}\n"


@cache
def password_file(password: str) -> str:
    """A path that this process and its children read the password at: memory, gone with this process by kill -9 too."""
    descriptor = os.memfd_create("walproof-pgpass", os.MFD_CLOEXEC)
    os.fchmod(descriptor, 0o600)
    os.write(descriptor, pgpass_line(password).encode())
    return f"/proc/{os.getpid()}/fd/{descriptor}"


def connection_error(wrong: psycopg.Error) -> TargetError:
    """libpq's own error as one sentence, with the next thing to type."""
    words = " ".join(str(wrong).split())
    lower = words.lower()
    if "requested a cleartext password" in lower:
        return TargetError(
            f"the server asks for the password in clear text, and only the cluster names it: {words}",
            "name its host in the DSN or the target file, or set password_encryption and pg_hba.conf to scram-sha-256",
        )
    if "channel binding" in lower:
        return TargetError(
            f"who answers there does not prove to be a server that knows this user: {words}",
            "PGCHANNELBINDING=prefer (or the DSN's channel_binding) where it lets in by LDAP, certificate or trust",
        )
    if "password" in lower:
        return TargetError(
            f"the password is refused or missing: {words}",
            "give it in ~/.pgpass, PGPASSWORD or a service, or name the cluster with --target",
        )
    if (hint := hint_of_refused_database(words)) is not None:
        return TargetError(f"the pooler knows no database of that name: {words}", hint)
    if "startup parameter" in lower:
        return TargetError(f"a connection pooler answers in place of the server: {words}", "name the server itself")
    if "pg_hba.conf" in lower:
        return TargetError(
            f"the server does not let us in: {words}", "add a line for this host and user to pg_hba.conf"
        )
    if "does not exist" in lower:
        return TargetError(f"the server refuses: {words}", "name another user or database in the DSN")
    return TargetError(f"the cluster does not answer: {words}", "is it up, and may this machine reach it?")


def check_version(version: int, member: str) -> None:
    """Refuse what walproof was never tried on: PostgreSQL before 14 and after 18."""
    if not OLDEST <= version < NEWEST:
        raise TargetError(
            f"{member} runs PostgreSQL {version // 10000}; walproof knows 14 to 18", "see docs/external-clusters.md"
        )


@contextlib.contextmanager
def asked(endpoint: Endpoint, within_s: float = 10.0, **words: str) -> "Iterator[psycopg.Connection[dict[str, Any]]]":
    """A connection in autocommit for short questions, rows as dictionaries; psycopg.Error where it fails or is late.

    Also where it is too soon after a login that was not answered. A question that is late ends in the server too.
    """
    conninfo = endpoint.conninfo(**LOGIN, options=f"-c statement_timeout={int(1000 * within_s)}", **words)
    with (
        first_answer(endpoint),
        open_session(conninfo, dict_row) as connection,
        answering(connection, within_s),
    ):
        yield connection


@contextlib.contextmanager
def session(
    endpoint: Endpoint, within_s: float = _WORK_S, most: int | None = None, *, client: bool = False
) -> "Iterator[psycopg.Connection[Any]]":
    """A session of walproof's own in autocommit; psycopg.Error when there is none within 5 s, or it lasts too long.

    client: it finds the tables that programs of the load find, but what is in pg_catalog first.
    """
    words = {"application_name": "walproof", "gssencmode": "disable", "connect_timeout": "5"}
    if client:
        conninfo = endpoint.client_conninfo(**words, options=f"{session_options()} {AS_PSYCOPG_READS}")
    else:
        conninfo = endpoint.conninfo(**words)
    with open_session(conninfo) as connection, answering(connection, within_s, most):
        if client:
            ((path,),) = connection.execute("SHOW search_path").fetchall()
            behind = f"pg_catalog, {path}".rstrip(", ")
            connection.execute("SELECT pg_catalog.set_config('search_path', %s, false)", (behind,))
        yield connection


@contextlib.contextmanager
def connected(endpoint: Endpoint, within_s: float = _WORK_S) -> "Iterator[psycopg.Connection[dict[str, Any]]]":
    """An administrator's connection in autocommit, rows as dictionaries; TargetError when it cannot be made."""
    try:
        opened = open_session(endpoint.conninfo(application_name="walproof configuring", connect_timeout="3"), dict_row)
    except psycopg.Error as wrong:
        raise connection_error(wrong) from None
    with opened as connection, answering(connection, within_s):
        yield connection


def enters(endpoint: Endpoint) -> bool:
    """Whether that user may connect there just now."""
    try:
        with connected(endpoint):
            return True
    except TargetError:
        return False
