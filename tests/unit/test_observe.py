"""`walproof observe`: the verb, its record and its files, from waits that are made up."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fixtures.command_line import Run, one_sentence, walproof
from tests.fixtures.observed import group, seen
from tests.fixtures.tiers import each
from walproof.cli import observe as observe_verb
from walproof.cli import watch as watch_verb
from walproof.errors import TargetError
from walproof.estimating import observed_prices
from walproof.estimating.observed_prices import payers
from walproof.estimating.observed_waits import observation
from walproof.machine.clock import RealClock
from walproof.model.observed_waits import WaitsSeen
from walproof.model.ports import Capabilities
from walproof.model.topology import ClusterView, Description
from walproof.model.waiting import Wait, wait_for
from walproof.records.codec import decode, encode
from walproof.records.reader import read
from walproof.targets.external import consent
from walproof.watching.collector import RecentWaits
from walproof.watching.exporter import Metrics

__all__ = ["walproof"]


def test_a_long_observation_is_a_short_record_and_is_read_in_one_pass(
    walproof: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million polls of 1,000 sessions in 20 groups: fourteen hours."""
    groups = tuple(group(f"app {i}", sessions=1000, writing=5, writing_s=0.1, standby=1) for i in range(20))
    lengths: list[float] = []

    class Endless(Waits):
        def watch(self, every_s: float, ended: Any) -> Iterator[WaitsSeen]:
            while not ended():
                if 20 * sum(lengths) >= 1_000_000:
                    raise KeyboardInterrupt
                lengths.append(every_s)
                polls = int(20 * every_s)
                yield seen(*groups, seconds=every_s, polls=polls, transaction_ids=int(400 * every_s))

    of(monkeypatch, Endless([]))
    monkeypatch.setattr(observe_verb, "_LINES", 30)
    code, out, err = walproof("observe", "--record", "there", "--every", "1s", "--json")
    assert code == 0, err
    assert len(lengths) < 330
    assert sorted(set(lengths)) == [2.0**n for n in range(11)]
    assert json.loads(out)["polls"] >= 1_000_000
    reads, every = Counter[str](), read(Path("there")).of(WaitsSeen)

    def counted(name: str) -> Any:
        return lambda one: (reads.update([name]), getattr(one, name))[1]

    monkeypatch.setattr(observed_prices, "attrgetter", counted)
    payers(every)
    assert reads == dict.fromkeys(observed_prices.DIMENSIONS, 20 * len(lengths))


def test_what_was_seen_comes_back_from_a_record() -> None:
    one = seen(group('a "b"\u00e9', standby=1), blockers={"x": 1}, overrides=(("audit", "", "local"),))
    assert decode(encode(one)) == (one, "")


class Waits:
    """Stands for a cluster's commit waits."""

    def __init__(self, every: list[WaitsSeen], wrong: TargetError | None = None) -> None:
        self.every, self.wrong, self.asked = every, wrong, 0.0

    def watch(self, every_s: float, ended: object) -> Iterator[WaitsSeen]:
        self.asked = every_s
        yield from self.every
        if self.wrong:
            raise self.wrong


def of(monkeypatch: pytest.MonkeyPatch, waits: Waits | None) -> None:
    chosen = SimpleNamespace(
        name="there",
        clock=SimpleNamespace(now=lambda: 1.0),
        capabilities=lambda: Capabilities(commit_waits=waits),
        describe=lambda: Description("there", ("n1",)),
        observe=lambda: ClusterView(1.0, (), "n1"),
    )
    monkeypatch.setattr(observe_verb, "choose", lambda where: chosen)


GOOD = [seen(group(standby=24, flush=40))] * 12


@each([
    ("commit-wait<=9ms", 0),
    ("commit-wait<=7ms", 1),
    ("standby-wait<=3.5ms,flush-wait<=6ms", 0),
    ("lock-wait<=1ms,flush-wait<=1ms", 1),
])  # fmt: skip
def test_what_is_required_decides_the_exit_code(
    asked: str, code: int, walproof: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """observe --require, --json."""
    of(monkeypatch, Waits(GOOD))
    got, out, err = walproof("observe", "--require", asked, "--json")
    assert got == code, err
    tree = json.loads(out)
    assert len(tree["requirements"]) == asked.count(",") + 1
    assert tree["requirements"][0]["ms"]["low"] <= tree["requirements"][0]["ms"]["high"]
    assert tree["commit_wait_ms"]["value"] == pytest.approx(8.0)


def test_few_stretches_leave_it_undecided(walproof: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """observe --duration, --every: too short for an interval."""
    waits = Waits(GOOD[:3])
    of(monkeypatch, waits)
    code, out, _ = walproof("observe", "--require", "commit-wait<=9ms", "--duration", "10ms", "--every", "2s")
    assert (code, waits.asked) == (4, 2.0)
    assert "undecided: commit-wait<=9ms" in out


def test_the_record_is_reported_like_every_other(
    walproof: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """observe --record; report of it as tables, a page and JSON."""
    of(monkeypatch, Waits(GOOD))
    code, out, err = walproof("observe", "--record", "there")
    assert code == 0, err
    assert "A commit on n1 waits 8.00" in out
    assert walproof("report", "there", "--html", "page.html")[0] == 0
    assert "What commits wait for" in Path("page.html").read_text()
    assert len(read(Path("there")).events) == 16
    assert "A commit on n1 waits 8.00" in walproof("report", "there")[1]
    assert json.loads(walproof("report", "there", "--json")[1])["observed"]["leader"] == "n1"


# rows: none ended, none waits for a standby, it is the only one, it waits
@each([
    ({"transaction_ids": 0, "commits": 0}, ""),
    ({"level": "local"}, ""),
    ({"applications": 1}, ""),
    ({}, "Application app makes about 91 % of the commits and 94 % of the waiting; at local it would wait 2.75 ms"),
])  # fmt: skip
def test_what_local_would_save_is_said_where_it_is_known(
    more: dict[str, Any], says: str, walproof: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting: dict[str, Any] = {"flush": 40, "writing": 40, "writing_s": 0.4, "standby": 0 if "level" in more else 20}
    groups = (group(**waiting), group("other", writing=4, writing_s=0.04, flush=4))[: more.get("applications", 2)]
    of(monkeypatch, Waits([seen(*groups, **{k: v for k, v in more.items() if k != "applications"})] * 12))
    code, out, err = walproof("observe")
    assert code == 0, err
    assert says in " ".join(out.split())
    assert says or "at local it would" not in out
    assert "nan" not in out


@each([0, 12])
def test_distress_keeps_what_was_seen_and_is_no_answer(
    kept: int, walproof: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    of(monkeypatch, Waits(GOOD[:kept], TargetError("n1 is in distress", "look")))
    code, out, err = walproof("observe", "--require", "commit-wait<=9ms")
    assert code == (4 if kept else 3)
    assert "n1 is in distress" in err
    assert ("A commit on n1" in out) is (kept > 0)


@each([
    (("--require", "on>=0.9"), "is not a requirement of a wait"),
    (("--require", "commit-wait<=5"), "met"),
    (("--duration", "0"), "--duration must be greater than 0"),
    (("--every", "1ms"), "--every 0.001 s is not valid"),
])  # fmt: skip
def test_what_cannot_be_asked(
    typed: tuple[str, ...], says: str, walproof: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    of(monkeypatch, Waits(GOOD))
    done = walproof("observe", *typed)
    if done[0] == 0:
        assert says in done[1]
    else:
        one_sentence(done, says)


def test_a_simulated_cluster_has_nothing_to_observe(walproof: Run) -> None:
    one_sentence(walproof("observe", "--target", "sim"), "a simulated cluster has no sessions that wait")


@each([(24, "no real difference"), (72, "longer"), (8, "shorter"), (0, "–")])
def test_two_observations_are_compared(standby: int, says: str, walproof: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """report of two records of observe: since the new disk."""
    for name, waiting in (("before", 24), ("after", standby)):
        of(monkeypatch, Waits([seen(group(standby=waiting + i % 2)) if waiting else seen(group()) for i in range(12)]))
        assert walproof("observe", "--record", name)[0] == 0
    code, out, err = walproof("report", "before", "after", "--json")
    assert code == 0, err
    rows = json.loads(out)["comparison"]["waits"]
    assert says in rows[0]["after: change"]


def test_the_exporter_says_what_commits_wait_for_without_a_canary(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = RecentWaits(Waits([seen(group(flush=40))] * 3, TargetError("gone", "look\x1b[2J")), RealClock())
    wait_for(Wait.PROGRAM_READY, lambda: bool(waits.unknown), RealClock())
    assert (waits.observed(), waits.unknown) == (None, "gone; look?[2J")
    waits.close()
    metrics = Metrics()
    metrics.record_waits(observation([seen(group(standby=24, flush=40))]))
    assert metrics.registry.get_sample_value("walproof_commit_wait_seconds", {"cause": "local flush"}) == 0.005
    metrics.record_waits(None)
    assert metrics.registry.get_sample_value("walproof_commit_wait_seconds", {"cause": "local flush"}) is None


@each([(1, 1, 30, True), (29, 1, 30, True), (32, 1, 30, False), (4, 1, 5, True), (7, 1, 5, False), (20, 20, 5, True)])
def test_waits_of_a_leader_that_is_gone_are_not_those_of_now(
    ago_s: float, lasted_s: float, asked_s: int, known: bool
) -> None:
    clock, ended = RealClock(), threading.Event()

    class Silent(Waits):
        def watch(self, every_s: float, _ended: object) -> Iterator[WaitsSeen]:
            yield from super().watch(every_s, _ended)
            ended.wait()

    waits = RecentWaits(Silent([seen(group(flush=40), at=clock.now() - ago_s, seconds=lasted_s)]), clock)
    wait_for(Wait.PROGRAM_READY, lambda: len(waits._seen) > 0, clock)
    assert (waits.observed(asked_s) is not None) is known
    ended.set()
    waits.close()


@each(["", "--exporter --canary", "--json"])
def test_no_canary_is_for_the_exporter(typed: str, walproof: Run) -> None:
    done = walproof("watch", "--target", "sim", "--no-canary", *typed.split())
    one_sentence(done, "--no-canary is for --exporter")


def test_an_exporter_without_a_canary_asks_no_consent(walproof: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """watch --exporter --no-canary."""
    given: list[Any] = []
    monkeypatch.setattr(watch_verb, "choose", lambda where: SimpleNamespace(name="there", external=True))
    monkeypatch.setattr(watch_verb, "_export", lambda *words: given.extend(words))
    monkeypatch.setattr(consent, "check", lambda *words, **more: given.append("asked"))
    assert walproof("watch", "--exporter", "--no-canary", "--quorum", "any1")[0] == 0
    assert given[2][0] == ()
    assert "asked" not in given


def test_advice_takes_an_observation_as_evidence_of_the_price(walproof: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """advise RECORD of observe: the load that is there, at every level that can be predicted."""
    of(monkeypatch, Waits([seen(group(sessions=160, busy=160, standby=24, flush=40))] * 12))
    assert walproof("observe", "--record", "there")[0] == 0
    code, out, err = walproof("advise", "there", "--json")
    assert code == 0, err
    made = json.loads(out)
    assert made["environment"]["workload"] == "as observed"
    assert {c["level"] for c in made["choices"]} <= {"local", "remote_write", "on", "remote_apply"}
    assert any("walproof price measures it" in caveat for caveat in made["choices"][0]["caveats"])
    assert "8 clients" in walproof("advise", "there")[1]


@pytest.mark.parametrize("more", [(), ("--json",), ("--require", "commit-wait<=9ms")])
def test_nothing_seen_is_undecided(walproof: Run, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]) -> None:
    of(monkeypatch, Waits([]))
    one_sentence(walproof("observe", "--duration", "10ms", *more), "nothing was observed", code=4)
