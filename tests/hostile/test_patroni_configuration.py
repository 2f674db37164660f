"""Patroni's dynamic configuration while another operator changes it: only our own keys, only as we set them."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.fake_patroni import FakePatroni, fake_patroni, merged
from walproof.errors import TargetError, UsageError
from walproof.machine.clock import RealClock
from walproof.model.guarantee import ConfigChange
from walproof.model.ports import UNTOLD
from walproof.model.topology import ClusterView, Endpoint
from walproof.patroni.rest import PatroniRest, RestAccess
from walproof.records.journal import Journal
from walproof.targets.configure import configure
from walproof.targets.patroni.configuration import CONFIG, PatroniConfiguration

OURS = ConfigChange({"work_mem": "5MB", "jit": "off"}, manager={"ttl": 20, "loop_wait": 5})
FOUND = {"ttl": 30, "retry_timeout": 10, "postgresql": {"use_slots": True, "parameters": {"work_mem": "4MB"}}}


@pytest.fixture
def patroni() -> Iterator[FakePatroni]:
    with fake_patroni() as fake:
        fake.config = json.loads(json.dumps(FOUND))
        fake.members = [{"name": "n1", "api_url": f"{fake.url}/patroni"}]
        yield fake


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal.jsonl")


@pytest.fixture
def configuration(patroni: FakePatroni) -> PatroniConfiguration:
    rest = PatroniRest(RestAccess((patroni.url,), "walproof", "secret"))
    clock = RealClock()
    return PatroniConfiguration("c", clock, rest, dict, lambda: ClusterView(clock.now(), (), None, ""))


def test_applied_and_undone_only_our_keys_travel_and_never_by_put(
    patroni: FakePatroni, configuration: PatroniConfiguration, journal: Journal
) -> None:
    configure(configuration, OURS, journal)
    assert configuration.undo(journal) == []
    parameters = {"postgresql": {"parameters": {"work_mem": "5MB", "jit": "off"}}}
    back = {"postgresql": {"parameters": {"work_mem": "4MB", "jit": None}}}
    assert [(a.method, a.body) for a in patroni.written] == [
        ("PATCH", {"ttl": 20, "loop_wait": 5, **parameters}),
        ("PATCH", {"ttl": 30, "loop_wait": None, **back}),
    ]
    assert patroni.config == FOUND


@pytest.mark.parametrize(
    ("theirs", "left"),
    [
        ({"ttl": 60}, ["cluster: ttl is 60 now"]),
        ({"ttl": None}, ["cluster: ttl is not set now"]),
        ({"loop_wait": 7}, ["cluster: loop_wait is 7 now"]),
        ({"postgresql": {"parameters": {"work_mem": "9MB"}}}, ["cluster: postgresql.parameters.work_mem is 9MB now"]),
        ({"postgresql": {"parameters": {"jit": "on"}}}, ["cluster: postgresql.parameters.jit is on now"]),
        ({"postgresql": {"parameters": {"pg_stat_statements.max": 5}}}, []),
        ({"pause": True}, []),
        ({"ttl": 30}, []),
    ],
    ids=[
        "other-ttl",
        "ttl-removed",
        "key-of-ours",
        "nested",
        "nested-new",
        "dotted-name",
        "another-key",
        "ours-undone",
    ],
)
def test_what_another_operator_set_meanwhile_stays_and_is_named(
    theirs: dict[str, object],
    left: list[str],
    patroni: FakePatroni,
    configuration: PatroniConfiguration,
    journal: Journal,
) -> None:
    configure(configuration, OURS, journal)
    patroni.config = merged(patroni.config, theirs)
    told = configuration.undo(journal, UNTOLD)
    assert bool(journal.pending()) is bool(left) and configuration.undo(journal) == told
    assert [sentence.split(",")[0] for sentence in told] == left
    # Theirs over what was found: nothing of ours is left, nothing of theirs is lost.
    assert patroni.config == merged(FOUND, theirs)
    assert journal.pending() == ()


def test_a_stale_answer_of_get_config_does_not_make_it_overwrite_the_newest(
    patroni: FakePatroni, configuration: PatroniConfiguration, journal: Journal
) -> None:
    configure(configuration, OURS, journal)
    patroni.stale = dict(FOUND)
    patroni.config = {**patroni.config, "ttl": 77}
    # The view catches up while the change is awaited.
    send = patroni.answer

    def catching_up(asked: object) -> tuple[int, object]:
        answer = send(asked)  # type: ignore[arg-type]
        if patroni.written and patroni.written[-1] is asked:
            patroni.stale = None
        return answer

    patroni.answer = catching_up  # type: ignore[method-assign]
    assert configuration.undo(journal) == ["cluster: ttl is 77 now, changed by another user since: left alone"]
    assert patroni.config["ttl"] == 77
    assert patroni.config["postgresql"]["parameters"] == {"work_mem": "4MB"}


def test_apply_refuses_when_one_of_its_keys_was_changed_since_the_plan(
    patroni: FakePatroni, configuration: PatroniConfiguration, journal: Journal
) -> None:
    plan = configuration.plan(OURS)
    patroni.config["postgresql"]["parameters"]["work_mem"] = "64MB"
    with pytest.raises(TargetError, match="changed by another user meanwhile"):
        configuration.apply(plan, journal)
    assert patroni.written == []
    assert journal.pending() == ()


def test_apply_refuses_when_one_of_its_keys_was_put_back_while_it_was_noted(
    patroni: FakePatroni, configuration: PatroniConfiguration, tmp_path: Path
) -> None:
    """By a revert that ended just then: the run's end would have set again what that had put back."""

    class Late(Journal):
        def note(self, *words: object, **values: object):  # type: ignore[no-untyped-def]
            patroni.config["postgresql"]["parameters"]["work_mem"] = "64MB"
            return super().note(*words, **values)  # type: ignore[arg-type]

    journal = Late(tmp_path / "late.jsonl")
    with pytest.raises(TargetError, match="was changed meanwhile"):
        configuration.apply(configuration.plan(OURS), journal)
    assert (patroni.written, journal.pending(), len(journal.changes())) == ([], (), 1)


def test_apply_keeps_a_key_of_another_operator_that_came_after_the_plan(
    patroni: FakePatroni, configuration: PatroniConfiguration, journal: Journal
) -> None:
    plan = configuration.plan(OURS)
    patroni.config["maximum_lag_on_failover"] = 7
    configuration.apply(plan, journal)
    assert patroni.config["maximum_lag_on_failover"] == 7
    assert "maximum_lag_on_failover" not in (journal.pending()[0].after or "")


def test_killed_between_journal_and_patch_nothing_is_changed_back(
    patroni: FakePatroni, configuration: PatroniConfiguration, journal: Journal
) -> None:
    note, after = {"config": {"ttl": 30}, "shown": {}}, {"ttl": 20}
    journal.note(1.0, "c", CONFIG, "config", before=json.dumps(note), after=json.dumps(after))
    assert configuration.undo(journal) == []
    assert patroni.written == []
    assert patroni.config == FOUND


def test_a_journal_of_a_whole_document_is_undone_by_its_changed_keys_only(
    patroni: FakePatroni, configuration: PatroniConfiguration, journal: Journal
) -> None:
    note = {"config": FOUND, "shown": {}}
    journal.note(1.0, "c", CONFIG, "config", before=json.dumps(note), after=json.dumps({**FOUND, "ttl": 20}))
    patroni.config = {**FOUND, "ttl": 20, "retry_timeout": 99}
    assert configuration.undo(journal) == []
    assert patroni.config == {**FOUND, "retry_timeout": 99}
    assert [a.body for a in patroni.written] == [{"ttl": 30}]


def test_an_undo_waits_for_members_that_have_not_reloaded_yet(
    patroni: FakePatroni, journal: Journal, configuration: PatroniConfiguration, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then PostgreSQL says that a restart is pending, for a value that is already the one of before."""
    patroni.config["postgresql"]["parameters"]["wal_buffers"] = "16MB"
    plan = configuration.plan(ConfigChange({"work_mem": "5MB", "wal_buffers": "64MB"}))
    configuration.apply(plan, journal)
    reloads = [False, False, True]

    def rows(_member: str, _names: list[str]) -> dict[str, dict[str, object]]:
        reloaded = reloads.pop(0) if len(reloads) > 1 else reloads[0]
        return {
            "work_mem": {"setting": "4096" if reloaded else "5120", "unit": "kB", "pending_restart": False},
            "wal_buffers": {"setting": "2048", "unit": "8kB", "pending_restart": not reloaded},
        }

    monkeypatch.setattr(configuration, "_members", lambda: {"n1": Endpoint((("nowhere", 1),))})
    monkeypatch.setattr(configuration._settings, "rows", rows)
    assert configuration.undo(journal) == []
    assert not journal.pending()


def test_a_value_that_needs_a_restart_is_refused(
    journal: Journal, configuration: PatroniConfiguration, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"setting": "2048", "unit": "8kB", "pending_restart": True}
    monkeypatch.setattr(configuration, "_members", lambda: {"n1": Endpoint((("nowhere", 1),))})
    monkeypatch.setattr(configuration._settings, "rows", lambda _member, _names: {"wal_buffers": row})
    with pytest.raises(UsageError, match="wal_buffers takes effect only at a restart"):
        configure(configuration, ConfigChange({"wal_buffers": "64MB"}), journal)
