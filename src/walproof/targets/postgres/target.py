"""Plain PostgreSQL by DSN or service: standbys found through pg_stat_replication, settings by ALTER SYSTEM."""

from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import dict_row

from walproof.errors import TargetError, UsageError
from walproof.model.guarantee import Quorum, QuorumKind, SyncMode, read_standby_names
from walproof.model.topology import Endpoint
from walproof.targets.external.cluster import OwnCluster
from walproof.targets.external.faults import BrokenByCommand
from walproof.targets.external.target_file import TargetFile
from walproof.targets.sql.alter_system import AutoConf, Difference, Notebook
from walproof.targets.sql.connection import Ways, check_version, conninfo_of, resolved, sentence
from walproof.targets.sql.facts import query

NAMES = "synchronous_standby_names"


class PostgresTarget(OwnCluster, BrokenByCommand):
    """Servers of yours without a manager that walproof knows."""

    def __init__(self, name: str, file: TargetFile, ways: Ways, members: dict[str, Endpoint]) -> None:
        super().__init__(name, file, ways, members)
        self.harmed: list[tuple[str, str]] = []

    def _auto(self) -> AutoConf:
        return AutoConf(self.name, self.clock, self._members)

    def differences(self, wanted: dict[str, str | None]) -> tuple[Difference, ...]:
        """What setting these would change."""
        return self._auto().differences(wanted)

    def set_parameters(self, parameters: dict[str, str | None]) -> None:
        """ALTER SYSTEM on every member, reload, wait until in effect; standby names only when they can be met."""
        quorum = read_standby_names(parameters.get(NAMES) or "") if NAMES in parameters else None
        if quorum is not None:
            self._refuse_hanging(quorum)
        self._auto().set(parameters, self._journal())
        if NAMES in parameters:
            self.await_quorum(quorum)

    def _refuse_hanging(self, quorum: Quorum) -> None:
        streaming = {m.name for m in self.observe().members if m.state == "streaming"}
        able = streaming if "*" in quorum.names else streaming & set(quorum.names)
        if len(able) < quorum.k:
            raise UsageError(
                f"{quorum.text} would hang every commit: {len(able)} of its standbys stream now",
                f"streaming: {', '.join(sorted(streaming)) or 'nobody'}",
            )

    def set_quorum(self, kind: QuorumKind, k: int) -> None:
        """Every standby that streams now is named."""
        names = tuple(m.name for m in self.observe().members if m.state == "streaming")
        self.set_parameters({NAMES: Quorum(kind, k, names).text if names else ""})

    def set_sync(self, mode: SyncMode, quorum: int) -> None:
        """Without a manager: off empties the names, anything else names every standby with ANY."""
        if mode is SyncMode.OFF:
            self.set_parameters({NAMES: ""})
        else:
            self.set_quorum(QuorumKind.FIRST if mode is SyncMode.ON else QuorumKind.ANY, quorum)

    def put_back(self, journal: Notebook) -> list[str]:
        """Undo every pending change of this target."""
        pending = [c for c in journal.pending(self.name) if c.what != "database"]
        return self._auto().undo(pending, journal.undone) if pending else []


@dataclass(frozen=True, slots=True)
class _Found:
    """A server that answered: its name, whether it leads, who streams from it and from whom it streams."""

    endpoint: Endpoint
    name: str
    row: dict[str, Any]
    senders: list[dict[str, Any]]
    upstream: str


def _asked(endpoint: Endpoint) -> _Found:
    with psycopg.connect(
        endpoint.conninfo(connect_timeout="2", target_session_attrs="any", application_name="walproof"),
        autocommit=True,
        row_factory=dict_row,
    ) as connection:
        check_version(connection.info.server_version, ":".join(map(str, endpoint.hosts[0])))
        row = connection.execute(query("self")).fetchone() or {}
        senders = connection.execute(query("senders")).fetchall()
        received = psycopg.conninfo.conninfo_to_dict(row.get("receiver_conninfo") or "")
    upstream = f"{received.get('host', '')}:{received.get('port', '')}".strip(":")
    streamed = str(received.get("application_name") or received.get("fallback_application_name") or "")
    name = row.get("cluster_name") or "" if row.get("leader") else streamed or row.get("cluster_name") or ""
    return _Found(endpoint, "" if name == "walreceiver" else str(name), row, senders, upstream)


def open_postgres(name: str, file: TargetFile) -> PostgresTarget:
    """Reach every host of the DSN and every standby that streams; TargetError when no leader is among them."""
    ways = resolved(file.dsn, file.service)
    conninfo_of(file.dsn, file.service)
    found: dict[tuple[str, int], _Found] = {}
    errors: dict[tuple[str, int], psycopg.Error] = {}
    named = {_place(at): label for label, at in file.members.items()}
    for host in dict.fromkeys((*ways.hosts, *named)):
        try:
            found[host] = _asked(ways.endpoint((host,)))
        except psycopg.Error as wrong:
            errors[host] = wrong
    leader = next((f for f in found.values() if f.row.get("leader")), None)
    if leader is None:
        raise _no_leader(found, errors)
    _discover(leader, found, ways)
    members = _members(found, errors, named, ways)
    target = PostgresTarget(name, file, ways, members)
    target.unaddressed = tuple(
        s["application_name"]
        for s in leader.senders
        if s["application_name"] not in members and s["state"] == "streaming" and s["application_name"]
    )
    return target


def _place(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    return (host, int(port)) if colon and port.isdigit() else (text, 5432)


def _no_leader(found: dict[tuple[str, int], _Found], errors: dict[tuple[str, int], psycopg.Error]) -> Exception:
    if not found:
        return sentence(next(iter(errors.values())))
    (host, port), standby = next(iter(found.items()))
    where = standby.upstream or "see primary_conninfo there"
    return TargetError(
        f"{host}:{port} is a standby, and no leader was named", f"it streams from {where}: name that host too"
    )


def _discover(leader: _Found, found: dict[tuple[str, int], _Found], ways: Ways) -> None:
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
                other = _asked(ways.endpoint(((address, port),)))
            except (psycopg.Error, TargetError):
                continue
            if other.row.get("system_identifier") == leader.row.get("system_identifier") and not other.row.get(
                "leader"
            ):
                found[address, port] = other
                break


def _members(
    found: dict[tuple[str, int], _Found],
    errors: dict[tuple[str, int], psycopg.Error],
    named: dict[tuple[str, int], str],
    ways: Ways,
) -> dict[str, Endpoint]:
    """Names → ways in: the file's names first, then how they stream, else host:port; never two alike."""
    members: dict[str, Endpoint] = {}
    told = [f.name for f in found.values()]
    for place, one in found.items():
        label = named.get(place) or (one.name if one.name and told.count(one.name) == 1 else f"{place[0]}:{place[1]}")
        members[label] = one.endpoint
    for place in errors:
        members.setdefault(named.get(place) or f"{place[0]}:{place[1]}", ways.endpoint((place,)))
    return members
