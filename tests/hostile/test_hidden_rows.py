"""What PostgreSQL hides from a role of few rights is not zero: watch and its metrics say that it is not known."""

import io
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from prometheus_client import generate_latest
from rich.console import Console

import walproof.cli.watch as watch_verb
from tests.fixtures.command_line import ended
from tests.fixtures.external_cluster import opened
from tests.fixtures.plain_pair import PlainPair, plain_pair, stop, synchronous
from tests.fixtures.tiers import each
from walproof.machine.clock import RealClock
from walproof.model.topology import ClusterView, Endpoint, Snapshot
from walproof.model.waiting import Wait, wait_for
from walproof.targets.sql.observe import combined
from walproof.watching.exporter import Exporter, Metrics
from walproof.watching.picture import Picture, sync_status, with_snapshot
from walproof.watching.terminal import rendered

GAUGES = ("walproof_syncrep_waiting", "walproof_syncrep_longest_seconds", "walproof_spare_synchronous_standbys")
GRANT = 'GRANT pg_monitor TO "lowly"'
_HIDDEN = {"name": "n2", "state": None, "sync_state": None, "address": None, "replayed": None}
_LEADS: dict[str, Any] = {
    "standby": False, "lsn": 500, "timeline": 1, "names": "n2", "commits": 7, "waiting": 0, "longest_wait_s": 0.0,
}  # fmt: skip
MEMBERS = {name: Endpoint(((name, 5432),)) for name in ("n1", "n2")}


def seen(hidden_from: str | None, sender: dict[str, Any], names: str = "n2") -> Snapshot:
    row = {**_LEADS, "hidden_from": hidden_from, "names": names}
    follows = {**row, "standby": True, "standbys": [], "receiver_conninfo": None, "cluster_name": "n2"}
    leads = {**row, "standbys": [sender], "receiver_conninfo": None, "cluster_name": "n1"}
    return combined(1.0, MEMBERS, {"n1": leads, "n2": follows})


def sample(metrics: Metrics, name: str) -> float | None:
    return metrics.registry.get_sample_value(name)


def test_what_is_hidden_is_no_number_and_what_is_granted_meanwhile_is_one() -> None:
    metrics, hidden = Metrics(), seen("lowly", _HIDDEN)
    granted = seen(None, {**_HIDDEN, "state": "streaming", "sync_state": "sync"})
    for now, known in ((hidden, False), (granted, True), (hidden, False), (granted, True)):
        metrics.record_snapshot(now, 1)
        assert [sample(metrics, name) for name in GAUGES] == ([0.0] * 3 if known else [None] * 3)
    assert sample(metrics, "walproof_quorum_in_effect") == 1.0, "every role may see what is asked for"
    assert b"walproof_sync_set_changes_total 0.0" in generate_latest(metrics.registry)


def test_nothing_is_told_of_waits_before_a_leader_answered() -> None:
    metrics = Metrics()
    assert [sample(metrics, name) for name in GAUGES] == [None] * 3
    metrics.record_snapshot(Snapshot(ClusterView(1.0, (), None)), 1)
    assert [sample(metrics, name) for name in GAUGES[:2]] == [None] * 2


def shown(picture: Picture) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(rendered(picture))
    return console.export_text()


@each([("n2", "", "wait for 1 standby; "), ("", "good", "no standby is named; ")])
def test_the_page_says_what_is_not_known_and_what_to_grant(names: str, severity: str, says: str) -> None:
    picture = with_snapshot(Picture(target="here"), seen("lowly", _HIDDEN, names))
    assert picture.severity == severity and picture.as_json()["waiting"] is None
    assert f"{says}who streams and what waits is not known: {GRANT}" in shown(picture)
    assert [m.state for m in picture.members] == ["running", "not known"]
    assert sync_status(seen("lowly", _HIDDEN, "n2").view, 2).spare is None
    reduced = with_snapshot(with_snapshot(Picture(), seen(None, _HIDDEN, "ANY 2 (n2,n3)")), seen("lowly", _HIDDEN))
    assert reduced.severity == "warn", "that fewer are asked for than before is seen by every role"


@pytest.fixture(scope="module")
def pair() -> Iterator[PlainPair]:
    """n2 is the synchronous standby and does not run: a commit hangs."""
    with plain_pair() as made:
        made.sql("n1", "CREATE ROLE lowly LOGIN PASSWORD 'lowly'")
        made.sql("n1", "CREATE TABLE hangs (i int)")
        synchronous(made, "n2")
        stop(made, "n2")
        with psycopg.connect(made.member_endpoint("n1").client_conninfo(), autocommit=True) as application:

            def hang() -> None:
                with suppress(psycopg.Error):
                    application.execute("INSERT INTO hangs VALUES (1)")

            commit = threading.Thread(target=hang, daemon=True)
            commit.start()
            try:
                yield made
            finally:
                made.sql("n1", f"SELECT pg_terminate_backend({application.info.backend_pid})")
                commit.join(30)


def dsn(pair: PlainPair, user: str) -> str:
    password = "password=lowly" if user == "lowly" else f"passfile={pair.passfile}"
    return f"host=127.0.0.1 port={pair.ports['n1']} dbname=postgres user={user} {password}"


@pytest.mark.nightly
@pytest.mark.lab
@pytest.mark.usefixtures("own_state")
@each(["lowly", "postgres"])
def test_a_role_that_may_not_see_who_waits_exports_no_number_of_it(user: str, pair: PlainPair) -> None:
    with opened(dsn(pair, user)) as target:
        exporter = Exporter(target, address=("127.0.0.1", 0), levels=())

        def answered() -> bool:
            exporter.update()
            return sample(exporter.metrics, "walproof_leader_known") == 1.0

        try:
            wait_for(Wait.PROGRAM_READY, answered, RealClock())
            if user == "postgres":
                wait_for(
                    Wait.PROGRAM_READY, lambda: answered() and sample(exporter.metrics, GAUGES[0]) == 1.0, RealClock()
                )
                assert sample(exporter.metrics, GAUGES[2]) == -1.0 and exporter.unseen == ""
            else:
                assert [sample(exporter.metrics, name) for name in GAUGES] == [None] * 3
                assert exporter.unseen == GRANT
        finally:
            exporter.close()


@pytest.mark.nightly
@pytest.mark.lab
@pytest.mark.usefixtures("own_state")
@each([("lowly", 1), ("postgres", 0)])
def test_the_exporter_says_once_what_it_may_not_see(
    user: str, lines: int, pair: PlainPair, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    end: list[Callable[[], None]] = []

    class Counted(Exporter):
        """Ends what serves it once a leader was seen three times."""

        led = 0

        def update(self) -> None:
            super().update()
            self.led += sample(self.metrics, "walproof_leader_known") == 1.0
            if self.led == 3:
                end[0]()

    monkeypatch.setattr(watch_verb, "Exporter", Counted)
    monkeypatch.setattr(watch_verb, "call_after", lambda _, then: end.append(then))
    words = ["watch", "--target", dsn(pair, user), "--exporter", "--no-canary", "--port", "0"]
    code, _, err = ended(capsys, words)
    assert code == 0 and err.count("pg_monitor") == lines, err
    assert err.count(f"not known: {GRANT}\n") == lines
