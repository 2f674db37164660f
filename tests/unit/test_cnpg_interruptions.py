"""What Kubernetes does to a client meanwhile: the API server gone for 20 s, conflicts, credentials that expire."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.fixtures import external_cluster
from tests.fixtures.external_cluster import needs_consent
from tests.fixtures.kubernetes.access import Account
from tests.fixtures.kubernetes.stand_in import StandIn, stand_in
from walproof.errors import TargetError, WaitTimeout
from walproof.model.drill import Capability
from walproof.model.guarantee import ConfigChange
from walproof.model.topology import ClusterView, MemberView, Role
from walproof.records.journal import Journal
from walproof.targets.cnpg.client import Client
from walproof.targets.cnpg.configuration import CnpgConfiguration
from walproof.targets.cnpg.faults_and_undo import CnpgRecovery, Instances
from walproof.targets.cnpg.kubeconfig import connection
from walproof.targets.cnpg.kubernetes_api import CLUSTERS, ApiError
from walproof.targets.cnpg.members import CnpgAccess
from walproof.targets.cnpg.target_file import CnpgFile
from walproof.targets.simulated.clock import VirtualClock

FILE = CnpgFile(kind="cnpg", cluster="default/pg", reach="pods")
NAMES = ("pg-1", "pg-2", "pg-3")
MEMBERS = tuple(MemberView(n, Role.LEADER if n == "pg-1" else Role.STANDBY, "running") for n in NAMES)
HEALTHY = ClusterView(0.0, MEMBERS, "pg-1", "")
NEVER = 1e18


@pytest.fixture
def running(tmp_path: Path) -> Iterator[StandIn]:
    with stand_in(tmp_path, speed=40) as started:
        yield started
        started.serving.api.oddities.unreachable_until = 0.0


@dataclass
class LoggedIn:
    """A client by a kubeconfig of its own, and the account of its token."""

    client: Client
    account: Account
    folder: Path


@pytest.fixture
def logged_in(running: StandIn, tmp_path: Path) -> LoggedIn:
    account = Account()
    environment = {"KUBECONFIG": str(running.serving.kubeconfig(account))}
    configuration, context = connection("", environment)
    renewed = lambda: connection("", environment)[0]  # noqa: E731
    return LoggedIn(Client(configuration, "default", context, renewed), account, tmp_path)


def gone(running: StandIn, clock: VirtualClock, seconds: float) -> None:
    """The API server resets every connection for so long of virtual time."""
    oddities, until = running.serving.api.oddities, clock.now() + seconds
    oddities.unreachable_until = NEVER

    def back() -> None:
        if clock.now() >= until:
            oddities.unreachable_until = 0.0

    clock.every(1.0, back)


def test_members_stay_known_while_the_api_server_is_gone(running: StandIn, logged_in: LoggedIn) -> None:
    access = CnpgAccess(logged_in.client, FILE)
    clock = VirtualClock()
    gone(running, clock, 20)
    with pytest.raises(ApiError, match=r"the API server https://127\.0\.0\.1:\d+ does not answer") as wrong:
        access.members.renew()
    assert wrong.value.code == 0 and wrong.value.hint == "kubectl get --raw /readyz"
    assert tuple(access.members()) == NAMES and access.state.holder == "pg-1"
    clock.pause(21)
    access.members.renew()
    assert tuple(access.members()) == NAMES


def test_what_a_user_sees_is_asked_again_where_no_member_answered(
    logged_in: LoggedIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While every pod is being made anew none does; a standby would else be taken for one that does not stream."""
    answers = iter([None, False])
    monkeypatch.setattr("walproof.targets.cnpg.members.sees_replication", lambda _: next(answers))
    access = CnpgAccess(logged_in.client, FILE)
    assert [access.sees_replication for _ in range(3)] == [True, False, False]


@dataclass
class Frozen:
    """A primary that is frozen, and what holds that it is."""

    clock: VirtualClock
    journal: Journal
    instances: Instances


@pytest.fixture
def frozen(logged_in: LoggedIn, tmp_path: Path) -> Frozen:
    clock, journal = VirtualClock(), Journal(tmp_path / "journal.jsonl")
    instances = Instances(logged_in.client, "pg", "cnpg:default/pg", clock, lambda: journal)
    instances.faults()[Capability.FREEZE].inject("pg-1")
    return Frozen(clock, journal, instances)


def test_a_frozen_primary_is_thawed_once_the_api_server_is_back(running: StandIn, frozen: Frozen) -> None:
    clock, journal, instances = frozen.clock, frozen.journal, frozen.instances
    began = clock.now()
    gone(running, clock, 20)
    CnpgRecovery(instances, lambda: HEALTHY).recover()
    assert clock.now() - began >= 20
    assert not instances.injected and journal.pending() == ()
    assert "thaw pg-1" in running.cnpg.postgres.done  # type: ignore[union-attr]


def test_an_api_server_that_stays_away_is_a_wait_that_ran_out_and_stays_in_the_journal(
    running: StandIn, frozen: Frozen
) -> None:
    journal, instances = frozen.journal, frozen.instances
    running.serving.api.oddities.unreachable_until = NEVER
    with pytest.raises(WaitTimeout, match="CLUSTER_HEALTHY"):
        CnpgRecovery(instances, lambda: HEALTHY).recover()
    assert [change.name for change in journal.pending()] == ["freeze pg-1"]


def configured(logged_in: LoggedIn) -> CnpgConfiguration:
    return CnpgConfiguration("cnpg:default/pg", VirtualClock(), (logged_in.client, "pg"), dict, lambda: HEALTHY)


def test_a_patch_that_meets_conflicts_is_made_onto_a_fresh_version(
    running: StandIn, logged_in: LoggedIn, tmp_path: Path
) -> None:
    configuration, journal = configured(logged_in), Journal(tmp_path / "journal.jsonl")
    plan = configuration.plan(ConfigChange({"work_mem": "5MB"}))
    running.serving.api.oddities.conflicts = 3
    configuration.apply(plan, journal)
    assert (running.store.find("Cluster", "pg") or {})["spec"]["postgresql"]["parameters"]["work_mem"] == "5MB"
    running.serving.api.oddities.conflicts = 3
    assert configuration.undo(journal) == [] and journal.pending() == ()
    assert "work_mem" not in (running.store.find("Cluster", "pg") or {})["spec"]["postgresql"]["parameters"]


def test_conflicts_without_end_are_refused_and_change_nothing(
    running: StandIn, logged_in: LoggedIn, tmp_path: Path
) -> None:
    configuration, journal = configured(logged_in), Journal(tmp_path / "journal.jsonl")
    plan = configuration.plan(ConfigChange({"work_mem": "5MB"}))
    running.serving.api.oddities.conflicts = 1000
    with pytest.raises(TargetError, match="is changed by another user all the time") as wrong:
        configuration.apply(plan, journal)
    assert "do it once more" in wrong.value.hint
    running.serving.api.oddities.conflicts = 0
    assert "work_mem" not in (running.store.find("Cluster", "pg") or {})["spec"]["postgresql"]["parameters"]
    assert configuration.undo(journal) == [] and journal.pending() == ()


def test_an_expired_token_is_one_sentence_and_the_next_one_is_read(running: StandIn, logged_in: LoggedIn) -> None:
    logged_in.account.expired = True
    for ask in (lambda: logged_in.client.get(CLUSTERS, "pg"), lambda: logged_in.client.exec("pg-1", ["true"])):
        with pytest.raises(ApiError, match=r"does not accept this user \(401\)") as wrong:
            ask()
        assert "log in again" in wrong.value.hint
    running.serving.kubeconfig(Account())
    assert logged_in.client.get(CLUSTERS, "pg")["metadata"]["name"] == "pg"
    assert logged_in.client.exec("pg-1", ["true"]).code == 0


def test_a_stream_reads_the_next_token_too(running: StandIn, logged_in: LoggedIn) -> None:
    logged_in.account.expired = True
    running.serving.kubeconfig(Account())
    assert logged_in.client.exec("pg-1", ["true"]).code == 0
    logged_in.client.forward("pg-1", 5432).close()


def test_make_test_kubernetes_changes_nothing_without_consent_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_cluster, "WANTED", "default/pg")
    monkeypatch.setenv("WALPROOF_ALLOW", "load")
    needs_consent("load")
    with pytest.raises(pytest.skip.Exception, match=r"kills PostgreSQL.*ALLOW=load,kill consents"):
        needs_consent("load", "kill")
    monkeypatch.setenv("WALPROOF_ALLOW", "")
    with pytest.raises(pytest.skip.Exception, match=r"changes settings, and reverts them: .*ALLOW=config consents"):
        needs_consent("config")
