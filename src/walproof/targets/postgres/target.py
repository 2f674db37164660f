"""Plain PostgreSQL by DSN or service: standbys found through pg_stat_replication, anew when a new one streams."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row

from walproof.errors import TargetError, UsageError
from walproof.machine.redaction import UNREADABLE, without_secrets
from walproof.model.ports import Configuration, Restart, Switchover
from walproof.model.topology import Endpoint
from walproof.targets.external.cluster import ExternalCluster
from walproof.targets.external.membership import Membership
from walproof.targets.external.target_file import TargetFile, is_file, read_tree, validated
from walproof.targets.postgres.configuration import PostgresConfiguration
from walproof.targets.sql.connection import (
    ConnectionParameters,
    answering,
    check_version,
    connection_error,
    conninfo_of,
    resolved,
)
from walproof.targets.sql.facts import Inspector, query


class NoManager:
    """Servers without a failover manager that walproof knows: hosts of the DSN and standbys that stream from them."""

    name = "none"

    def __init__(self, file: TargetFile, parameters: ConnectionParameters) -> None:
        self._parameters = parameters
        self._named = {_place(at): label for label, at in file.members.items()}
        self._found: dict[tuple[str, int], _Found] = {}
        self._errors: dict[tuple[str, int], psycopg.Error] = {}
        self._reach_named()
        self.members = Membership(self._find)

    def _reach_named(self) -> None:
        """Reach every host of the DSN and of the target file; TargetError when no leader is among them."""
        for host in dict.fromkeys((*self._parameters.hosts, *self._named)):
            try:
                self._found[host] = _asked(self._parameters.endpoint((host,)))
            except psycopg.Error as wrong:
                self._errors[host] = wrong
        if not any(f.row.get("leader") for f in self._found.values()):
            raise _no_leader(self._found, self._errors)

    def _find(self) -> dict[str, Endpoint]:
        """Members as far as known, and every standby that streams from whoever leads now."""
        leader = next((f for f in map(_asked_again, list(self._found.values())) if f and f.row.get("leader")), None)
        if leader is not None:
            _find_standbys(leader, self._found, self._parameters)
        return _members(self._found, self._errors, self._named, self._parameters)

    def facts(self) -> dict[str, str]:
        """Nothing beyond PostgreSQL itself."""
        return {}

    def configuration(self, cluster: ExternalCluster) -> Configuration:
        """ALTER SYSTEM on every member."""
        return PostgresConfiguration(cluster.name, cluster.clock, self.members, cluster.observe)

    def inspector(self, cluster: ExternalCluster) -> Inspector:
        """The doctor's facts, without a manager's."""
        return Inspector(cluster.name, self.members)

    def restart(self, cluster: ExternalCluster) -> Restart | None:
        """There is no manager that could."""
        return None

    def switchover(self, cluster: ExternalCluster) -> Switchover | None:
        """There is no manager that could."""
        return None

    def takeover(self, cluster: ExternalCluster) -> None:
        """There is no leader lock."""

    def elected_at(self, log: str, since: float) -> float | None:
        """There is no manager that could say."""
        return None


@dataclass(frozen=True, slots=True)
class _Found:
    """A server that answered: its name, whether it leads, who streams from it, and its upstream."""

    endpoint: Endpoint
    name: str
    row: dict[str, Any]
    senders: list[dict[str, Any]]
    upstream: str


def _asked(endpoint: Endpoint) -> _Found:
    words = endpoint.conninfo(connect_timeout="2", target_session_attrs="any", application_name="walproof")
    with (
        psycopg.connect(words, autocommit=True, row_factory=dict_row) as connection,
        answering(connection),
    ):
        check_version(connection.info.server_version, ":".join(map(str, endpoint.hosts[0])))
        row = connection.execute(query("self")).fetchone() or {}
        senders = connection.execute(query("senders")).fetchall()
        received = psycopg.conninfo.conninfo_to_dict(row.get("receiver_conninfo") or "")
    upstream = f"{received.get('host', '')}:{received.get('port', '')}".strip(":")
    streamed = str(received.get("application_name") or received.get("fallback_application_name") or "")
    name = row.get("cluster_name") or "" if row.get("leader") else streamed or row.get("cluster_name") or ""
    return _Found(endpoint, "" if name == "walreceiver" else str(name), row, senders, upstream)


def open_postgres(address: str) -> ExternalCluster:
    """The cluster of a DSN, a libpq URL or a target file; TargetError when no leader answers."""
    name, file = read_address(address)
    conninfo_of(file.dsn, file.service)
    parameters = resolved(file.dsn, file.service)
    return ExternalCluster(name, file, parameters, NoManager(file, parameters))


def read_address(address: str) -> tuple[str, TargetFile]:
    """(name without any password, target) of a DSN, a libpq URL or a target file; UsageError when it is not valid."""
    if is_file(address):
        path = Path(address)
        file = validated(TargetFile, read_tree(path), str(path))
        if not (file.dsn or file.service):
            raise UsageError(f"the target file {path}: postgres needs dsn or service", 'dsn = "host=a,b user=postgres"')
        return str(path.absolute()), file
    name = without_secrets(address)
    if name == UNREADABLE:
        raise UsageError(
            "this DSN cannot be read, and may hold a password",
            "leave the password to ~/.pgpass or PGPASSWORD; in a URL write @ as %40 and / as %2F",
        )
    return name, TargetFile(kind="postgres", dsn=address)


def _place(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    return (host, int(port)) if colon and port.isdigit() else (text, 5432)


def _no_leader(found: dict[tuple[str, int], _Found], errors: dict[tuple[str, int], psycopg.Error]) -> Exception:
    if not found:
        return connection_error(next(iter(errors.values())))
    (host, port), standby = next(iter(found.items()))
    where = standby.upstream or "see primary_conninfo there"
    return TargetError(
        f"{host}:{port} is a standby, and no leader was named", f"it streams from {where}: name that host too"
    )


def _asked_again(known: _Found) -> _Found | None:
    """The same server as it is now, None when it does not answer."""
    try:
        return _asked(known.endpoint)
    except (psycopg.Error, TargetError):
        return None


def _find_standbys(leader: _Found, found: dict[tuple[str, int], _Found], parameters: ConnectionParameters) -> None:
    """Standbys of pg_stat_replication by their address, on the leader's port and on 5432, where they answer."""
    known = {f.name for f in found.values()}
    for sender in leader.senders:
        address = str(sender["address"]).split("/")[0]
        if not address or sender["application_name"] in known:
            continue
        for port in dict.fromkeys((leader.endpoint.hosts[0][1], 5432)):
            if (address, port) in found:
                continue
            try:
                other = _asked(parameters.endpoint(((address, port),)))
            except (psycopg.Error, TargetError):
                continue
            same = other.row.get("system_identifier") == leader.row.get("system_identifier")
            if same and not other.row.get("leader"):
                found[address, port] = other
                break


def _members(
    found: dict[tuple[str, int], _Found],
    errors: dict[tuple[str, int], psycopg.Error],
    named: dict[tuple[str, int], str],
    parameters: ConnectionParameters,
) -> dict[str, Endpoint]:
    """Names → connection parameters: the file's names first, then how they stream, else host:port; never two alike."""
    members: dict[str, Endpoint] = {}
    names = [f.name for f in found.values()]
    for place, one in found.items():
        label = named.get(place) or (one.name if one.name and names.count(one.name) == 1 else f"{place[0]}:{place[1]}")
        members[label] = one.endpoint
    for place in errors:
        members.setdefault(named.get(place) or f"{place[0]}:{place[1]}", parameters.endpoint((place,)))
    return members
