"""Signs of every member over SQL, all asked at once; one that does not answer in time is there without answers."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import resources
from typing import Any

import psycopg
from psycopg.rows import dict_row

from walproof.errors import Error
from walproof.model.member_state import LedgerTable, MemberState
from walproof.model.ports import Clock
from walproof.model.topology import Endpoint
from walproof.targets.sql.connection import answering

_QUERY = (resources.files("walproof.targets.sql.queries") / "member_state.sql").read_bytes()
_LONGEST_S = 2.0


class SqlMemberStates:
    """The members that `members` names; `machine` adds what a member's machine tells, where it can be asked."""

    def __init__(
        self,
        members: Callable[[], Mapping[str, Endpoint]],
        clock: Clock,
        machine: Callable[[MemberState], MemberState] = lambda state: state,
    ) -> None:
        self._members, self._clock, self._machine = members, clock, machine

    def states(self) -> tuple[MemberState, ...]:
        """Every member now, within about two seconds."""
        endpoints = self._members()
        found = {name: MemberState(name, self._clock.now()) for name in endpoints}

        def ask(name: str, endpoint: Endpoint) -> None:
            row = _answer(endpoint)
            if row is not None:
                found[name] = state_of(name, self._clock.now(), row)

        threads = [threading.Thread(target=ask, args=pair, daemon=True) for pair in endpoints.items()]
        # The machines are asked meanwhile: what they tell is of the same moment.
        machines: dict[str, MemberState] = {}
        for thread in threads:
            thread.start()
        for name, bare in dict(found).items():
            machines[name] = self._shown(bare)
        until = self._clock.now() + _LONGEST_S
        for thread in threads:
            thread.join(timeout=max(0.0, until - self._clock.now()))
        return tuple(_together(dict(found)[name], machines[name]) for name in endpoints)

    def _shown(self, bare: MemberState) -> MemberState:
        try:
            return self._machine(bare)
        except (Error, OSError):
            return bare


def _together(answered: MemberState, shown: MemberState) -> MemberState:
    """What SQL answered and what the machine shown, as one state of the later moment."""
    return replace(
        answered,
        postmaster=shown.postmaster,
        processes=shown.processes,
        disk=shown.disk,
        dcs=shown.dcs,
        container=shown.container,
        manager=shown.manager,
        stressed=shown.stressed,
        chaos=shown.chaos,
        deaf_to=shown.deaf_to,
    )


def _answer(endpoint: Endpoint) -> dict[str, Any] | None:
    options = endpoint.conninfo(connect_timeout="2", application_name="walproof signs", target_session_attrs="any")
    try:
        with (
            psycopg.connect(options, autocommit=True, row_factory=dict_row) as connection,
            answering(connection),
        ):
            connection.execute(f"SET statement_timeout = {int(1000 * _LONGEST_S)}")
            return connection.execute(_QUERY).fetchone()
    except psycopg.Error:
        return None


def state_of(member: str, at: float, row: Mapping[str, Any]) -> MemberState:
    """The row of member_state.sql as a state. Pure."""
    table = LedgerTable(str(row["persistence"]), tuple(row["triggers"]), bool(row["row_security"]))
    return MemberState(
        member,
        at,
        answers=True,
        in_recovery=bool(row["in_recovery"]),
        started=str(row["started"] or ""),
        stats_reset=str(row["stats_reset"] or ""),
        system=str(row["system"] or ""),
        timeline=row["timeline"],
        lsn=None if row["lsn"] is None else int(row["lsn"]),
        settings={str(name): str(value) for name, value in (row["settings"] or {}).items()},
        overrides=tuple(row["overrides"]),
        checksum_failures=row["checksum_failures"],
        senders=tuple(row["senders"]),
        receives=bool(row["receives"]),
        replay_paused=row["replay_paused"],
        table=None if row["persistence"] is None else table,
    )
