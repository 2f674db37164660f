"""Who streams from the leader is a standby only where it replays: subscribers and receivers confirm commits too."""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.fixtures.external_cluster import opened, pair_dsn
from tests.fixtures.plain_pair import PlainPair, await_streaming, plain_pair, start, stop, wheel_bin
from walproof.machine.clock import RealClock
from walproof.model.guarantee import ConfigChange, QuorumKind, SyncReplication
from walproof.model.waiting import Wait, wait_for

pytestmark = pytest.mark.lab
_SEEN = "SELECT application_name FROM pg_stat_replication WHERE state = 'streaming' ORDER BY 1"


@pytest.fixture(scope="module")
def streamed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlainPair]:
    """A pair from whose leader a subscriber and a receiver of WAL stream too, under names of their own."""
    folder = tmp_path_factory.mktemp("received")
    with plain_pair() as pair, ExitStack() as ended:
        pair.sql("n1", "ALTER SYSTEM SET wal_level = 'logical'")
        stop(pair, "n1", "fast")
        start(pair, "n1")
        await_streaming(pair)
        pair.sql("n1", "SELECT pg_create_logical_replication_slot('reporting', 'pgoutput')")
        dsn = f"{pair_dsn(pair, 'n1')} dbname=postgres application_name="
        publication = ("-o", "proto_version=1", "-o", "publication_names=p")
        pair.sql("n1", "CREATE PUBLICATION p FOR ALL TABLES")
        for argv in (
            ("pg_recvlogical", "-d", f"{dsn}reporting", "--slot=reporting", "--start", "-f", "/dev/null", *publication),
            ("pg_receivewal", "-d", f"{dsn}archive", "--synchronous", "-D", str(folder)),
        ):
            process = ended.enter_context(subprocess.Popen([str(wheel_bin() / argv[0]), *argv[1:]]))
            ended.callback(process.kill)
        names = [("archive",), ("n2",), ("reporting",)]
        wait_for(Wait.PROGRAM_READY, lambda: pair.sql("n1", _SEEN) == names, RealClock())
        yield pair


def test_neither_a_subscriber_nor_a_receiver_of_wal_is_named_or_counted(streamed: PlainPair, tmp_path: Path) -> None:
    """Commits at remote_apply were acknowledged with the only standby down, for the subscriber had confirmed them."""
    with opened(pair_dsn(streamed, "n1", "n2")) as target:
        assert {m.name for m in target.observe().members} == {f"127.0.0.1:{streamed.ports['n1']}", "n2"}
        inspection = target.capabilities().inspection
        assert inspection
        assert {s.application_name for m in inspection.facts().members for s in m.senders} == {"n2"}
        plan = target.configuration.plan(ConfigChange(replication=SyncReplication(QuorumKind.ANY, 1)))
        assert {s.value for s in plan.settings} == {'ANY 1 ("n2")'}
