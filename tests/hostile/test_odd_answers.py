"""Whoever answers at a member's address declares types and values: an odd answer is none, and who looks on looks on."""

import io
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from prometheus_client import generate_latest
from rich.console import Console

from tests.fixtures.tiers import each
from tests.unit.test_watching import snapshot, view
from walproof.errors import TargetError
from walproof.machine.clock import RealClock
from walproof.model.facts import PatroniFacts
from walproof.model.leader_lease import LeaseSeen
from walproof.model.topology import Endpoint, Role, Snapshot
from walproof.model.waiting import Wait, wait_for
from walproof.targets.simulated.target import simulated
from walproof.targets.sql import doctor_facts, observe
from walproof.watching import collector
from walproof.watching.collector import Collector, LeaseWatch, RecentWaits
from walproof.watching.exporter import Metrics
from walproof.watching.terminal import rendered

SENDER = {"name": "n2", "state": "streaming", "sync_state": "quorum", "address": "n2", "replayed": 5000}
ROW: dict[str, Any] = {
    "standby": False, "lsn": Decimal(5000), "timeline": 1, "names": "ANY 1 (n2)", "version": 150004,
    "system": "7", "cluster_name": "n1", "receiver_conninfo": None, "commits": Decimal(100), "hidden_from": None,
    "waiting": 0, "longest_wait_s": Decimal("0.5"), "standbys": [SENDER],
}  # fmt: skip
ODD: dict[str, dict[str, Any]] = {
    "a word": {"lsn": "x"},
    "none": {"lsn": None},
    "no number": {"lsn": Decimal("NaN")},
    "a number without end": {"commits": Decimal(10) ** 400},
    "a time without end": {"longest_wait_s": Decimal(10) ** 400},
    "negative": {"lsn": -1},
    "a timeline that is a word": {"timeline": "x"},
    "standbys that are a word": {"standbys": "x"},
    "standbys without a name": {"standbys": [{}]},
    "a state that is a list": {"standbys": [{**SENDER, "state": []}]},
    "names that are a number": {"names": 7},
}


class Answering:
    """A connection that has one answer."""

    def __init__(self, row: dict[str, Any] | None) -> None:
        self.row, (self.wire, _) = row, socket.socketpair()

    def fileno(self) -> int:
        return self.wire.fileno()

    def __enter__(self) -> "Answering":
        return self

    def __exit__(self, *_: object) -> None: ...

    def execute(self, _query: bytes) -> "Answering":
        return self

    def fetchone(self) -> dict[str, Any] | None:
        return self.row


MEMBERS = {name: Endpoint(((name, 5432),), "postgres", "postgres") for name in ("n1", "n2")}


@each([*ODD.values(), None])
def test_a_member_that_answers_oddly_does_not_answer(
    odd: dict[str, Any] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {"n1": ROW, "n2": None if odd is None else {**ROW, "standby": True, "standbys": [], **odd}}
    monkeypatch.setattr(observe, "asked", lambda endpoint, *_, **__: Answering(rows[endpoint.hosts[0][0]]))
    monkeypatch.setattr(observe, "open_session", lambda name, *_, **__: Answering(rows[name]))
    monkeypatch.setattr(Endpoint, "conninfo", lambda self, **_: self.hosts[0][0])
    seen = observe.observed(MEMBERS, RealClock())
    assert [(m.name, m.role) for m in seen.members] == [("n1", Role.LEADER), ("n2", Role.UNKNOWN)]
    poller = observe.SqlPoller(lambda: MEMBERS, RealClock(), pace_s=0.01, silent_s=600)
    try:
        wait_for(Wait.PROGRAM_READY, lambda: poller.snapshot().view.leader == "n1", RealClock())
        assert [m.role for m in poller.snapshot().view.members] == [Role.LEADER, Role.UNKNOWN]
        assert all(thread.is_alive() for thread in poller._polled.values())
    finally:
        poller.close()


@each([OverflowError("odd"), RecursionError("of JSON"), struct.error("a binary row")])
def test_who_looks_on_survives_an_odd_answer(wrong: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(collector, "_AGAIN_S", 0.01)
    monkeypatch.setattr(collector, "PACE_S", 0.01)
    left = {"lease": 3, "waits": 3, "links": 3}

    def odd(what: str) -> None:
        left[what] = max(0, left[what] - 1)
        if left[what]:
            raise wrong

    class Asked:
        def look(self) -> LeaseSeen:
            odd("lease")
            return LeaseSeen(10.0, 20.0, "main", "n1", answers=False)

        def watch(self, _every_s: float, _ended: object) -> Iterator[Any]:
            odd("waits")
            return iter(())

        def links(self) -> tuple[()]:
            odd("links")
            return ()

    asked: Any = Asked()
    lease, waits = LeaseWatch(asked), RecentWaits(asked, RealClock())
    target: Any = simulated("sim?members=3")
    able = replace(target.capabilities(), links=asked)
    target.capabilities = lambda: able
    live = Collector(target)
    try:
        wait_for(Wait.PROGRAM_READY, lambda: lease.silent is not None and not any(left.values()), RealClock())
        wait_for(Wait.PROGRAM_READY, lambda: f"not read: {wrong}" in str(live.picture.events), RealClock())
        assert live.stale_s is not None
        console = Console(record=True, file=io.StringIO())
        console.print(rendered(live.picture, live.stale_s + 60))
        assert "not renewed for 6" in console.export_text()
    finally:
        for part in (lease, waits, live):
            part.close()


def odd_manager() -> PatroniFacts:
    raise OverflowError("int too large to convert to float")


@each([(odd_manager, "cannot be read: int too large"), (threading.Event().wait, "did not answer")])
def test_the_doctor_does_not_take_a_manager_for_none(
    manager: Callable[[], PatroniFacts], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_facts, "_LONGEST_S", 0.2 if manager is not odd_manager else 60.0)
    with pytest.raises(TargetError, match=why):
        doctor_facts.gathered("c", {}, manager)


def test_a_member_that_is_gone_is_told_of_no_more() -> None:
    metrics = Metrics()
    metrics.record_snapshot(snapshot(1.0), 1)
    assert b'walproof_lag_bytes{member="n3"}' in generate_latest(metrics.registry)
    metrics.record_snapshot(Snapshot(replace(view(2.0), members=view(2.0).members[:2]), None, 0, 0.0), 1)
    told = generate_latest(metrics.registry)
    assert b'member="n3"' not in told and b'walproof_member_up{member="n2"} 1.0' in told
