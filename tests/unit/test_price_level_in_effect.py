"""A level that is not in effect is no price: found by what sessions wait for, and never of an honest load."""

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest

from tests.fixtures.priced_fake import FakePriced
from tests.unit.test_cli_price import Run, run  # noqa: F401
from tests.unit.test_pricing import priced
from walproof.advising.evidence import evidence_of
from walproof.load.sampler import Counters, Sampler
from walproof.model.estimate import Caveat, bucketed
from walproof.model.event import Event, SampleDone, ScenarioEntered
from walproof.model.guarantee import Level
from walproof.model.ports import Clock
from walproof.model.sample import Arm, MemberWindow, Sample, SampleResult, Scenario, Window
from walproof.pricing.estimates import caveats_by_arm, price_table
from walproof.pricing.latency_breakdown import breakdowns
from walproof.pricing.level_in_effect import contradictions
from walproof.pricing.results_and_gate import Answer, conclusion, parse_requirements, required
from walproof.pricing.sampling import Question
from walproof.reporting.comparison import _change
from walproof.reporting.outline import Cell

NAMES = 'ANY 1 ("n2", "n3")'


@dataclass(frozen=True)
class Load:
    """What a load does, and what each of its commits waits for; ms. ids: of a transaction that writes."""

    waits_ms: float = 0.0
    flushes_ms: float = 0.0
    runs_ms: float = 0.1
    writers: float = 1.0
    ids: float = 1.0
    wal_a_id: float = 120.0
    rolled_back: float = 0.0
    others_ids: float | None = 0.0
    wal_writer: int = 0

    def sample(self, arm: Arm, scenario: Scenario, block: int, seconds: float = 1.5) -> SampleResult:
        """One sample of it, every number as expected on average."""
        wait = self.waits_ms + self.flushes_ms
        mean = self.runs_ms + self.writers * wait
        tps = 1000 * arm.clients / mean
        ids = tps * seconds * self.writers * self.ids
        looks = round(10 * seconds * arm.clients)
        waits = {
            "IPC:SyncRep": self.writers * self.waits_ms / mean,
            "IO:WalSync": self.writers * self.flushes_ms / mean,
        }
        leader = MemberWindow(
            transaction_ids=round(ids + (self.others_ids or 0.0) * seconds),
            wal_bytes=round(ids * self.wal_a_id),
            rolled_back=self.rolled_back,
        )
        window = Window(
            {**waits, "cpu": 1 - sum(waits.values())},
            {"n1": leader},
            standby_names=NAMES,
            leader="n1",
            looks=looks,
            writing=round(looks * self.writers * (wait + self.runs_ms / 5) / mean),
            wal_writer=self.wal_writer,
            others_ids=self.others_ids,
        )
        writing = round(1000 * self.writers)
        latencies = np.array([self.runs_ms] * (1000 - writing) + [self.runs_ms + wait] * writing)
        return SampleResult(
            Sample(block, 0, arm, scenario), 0.0, seconds, round(tps * seconds), 0, tps * seconds, mean,
            bucketed(latencies), {}, window,
        )  # fmt: skip


def events_of(level: Level, load: Load, rtt_ms: float | None, *, clients: tuple[int, ...] = (1, 16)) -> list[Event]:
    """Six blocks of it; rtt_ms: as measured, None where it is not."""
    scenario = Scenario(rtt_ms=rtt_ms)
    measured = {} if rtt_ms is None else {"n1-n2": rtt_ms, "n1-n3": rtt_ms, "n2-n3": rtt_ms}
    arms = [Arm(level, one) for one in clients]
    samples = [SampleDone(0.0, load.sample(arm, scenario, block)) for block in range(1, 7) for arm in arms]
    return [ScenarioEntered(0.0, scenario, measured), *samples]


FAST = Load(runs_ms=0.04)


@pytest.mark.parametrize(
    ("level", "load", "rtt_ms", "says"),
    [
        pytest.param(Level.ON, FAST, 8.0, "p50 0.04 ms under a round trip of 8 ms", id="set_config in a function"),
        pytest.param(Level.REMOTE_APPLY, FAST, 8.0, "for a standby", id="a trigger at remote_apply"),
        pytest.param(Level.REMOTE_WRITE, replace(FAST, flushes_ms=0.3), 8.0, "for a standby", id="local by a DO block"),
        pytest.param(Level.ON, replace(FAST, writers=0.2), 8.0, "for a standby", id="mostly reads"),
        pytest.param(Level.ON, Load(runs_ms=0.2), 0.05, "for a standby", id="without distance"),
        pytest.param(Level.ON, Load(runs_ms=0.1), None, "for a standby", id="round trip not measured"),
        pytest.param(Level.ON, Load(runs_ms=30.0), 8.0, "for a standby", id="transactions longer than the round trip"),
        pytest.param(Level.ON, replace(FAST, others_ids=1000.0), 8.0, "for a standby", id="while others write too"),
        pytest.param(Level.LOCAL, replace(FAST, wal_writer=1), 8.0, "for a flush", id="off at local"),
        pytest.param(Level.LOCAL, Load(waits_ms=8.2), 8.0, "wait for a standby", id="on at local"),
        pytest.param(Level.OFF, Load(waits_ms=8.2), 8.0, "wait for a standby", id="on at off"),
        pytest.param(Level.OFF, Load(waits_ms=0.3), 0.05, "wait for a standby", id="on at off without distance"),
    ],
)  # fmt: skip
def test_a_level_that_is_not_in_effect_is_named(level: Level, load: Load, rtt_ms: float | None, says: str) -> None:
    why = contradictions(events_of(level, load, rtt_ms))
    assert set(why) == {Arm(level, 1), Arm(level, 16)}
    assert f"The level {level} was not in effect" in why[Arm(level, 1)] and says in why[Arm(level, 1)]


WAITING = Load(waits_ms=8.3, flushes_ms=0.3)


@pytest.mark.parametrize(
    ("level", "load", "rtt_ms"),
    [
        pytest.param(Level.ON, WAITING, 8.0, id="every commit waits"),
        pytest.param(Level.ON, Load(writers=0.0), 8.0, id="reads"),
        pytest.param(Level.ON, Load(writers=0.0, others_ids=3000.0), 8.0, id="reads while others write"),
        pytest.param(Level.ON, Load(writers=0.0, others_ids=None), 8.0, id="reads, others not known"),
        pytest.param(Level.ON, replace(WAITING, writers=0.1), 8.0, id="one in ten writes: p50 is a read"),
        pytest.param(Level.ON, replace(WAITING, writers=0.01), 8.0, id="one in a hundred writes"),
        pytest.param(Level.ON, replace(WAITING, ids=20.0), 8.0, id="many subtransactions"),
        pytest.param(Level.ON, replace(WAITING, writers=0.1, ids=12.0), 8.0, id="reads and many subtransactions"),
        pytest.param(Level.ON, Load(waits_ms=8.3, runs_ms=500.0), 8.0, id="long transactions"),
        pytest.param(Level.ON, Load(waits_ms=8.3, runs_ms=500.0, ids=1000.0), 8.0, id="long, a thousand ids each"),
        pytest.param(Level.ON, replace(FAST, wal_a_id=45.0), 8.0, id="unlogged and temporary tables"),
        pytest.param(Level.ON, replace(FAST, rolled_back=0.6), 8.0, id="rolls back"),
        pytest.param(Level.ON, Load(waits_ms=0.25, flushes_ms=0.05), 0.05, id="on without distance"),
        pytest.param(Level.ON, Load(waits_ms=0.06, runs_ms=0.4), 0.05, id="barely a wait, without distance"),
        pytest.param(Level.LOCAL, Load(flushes_ms=0.3), 8.0, id="local"),
        pytest.param(Level.LOCAL, Load(flushes_ms=0.05, wal_writer=1), 8.0, id="local on a fast disk"),
        pytest.param(Level.LOCAL, Load(runs_ms=0.1), 8.0, id="local where a flush takes no time"),
        pytest.param(Level.OFF, replace(FAST, wal_writer=1), 8.0, id="off"),
        pytest.param(Level.OFF, Load(flushes_ms=0.3, wal_writer=1), 8.0, id="off that waits for room in WAL buffers"),
    ],
)  # fmt: skip
def test_an_honest_load_is_never_refused(level: Level, load: Load, rtt_ms: float | None) -> None:
    assert contradictions(events_of(level, load, rtt_ms)) == {}


def test_what_is_known_not_to_wait_is_left_to_its_own_caveat() -> None:
    bare = [
        replace(e, result=replace(e.result, window=replace(e.result.window, standby_names="")))
        if isinstance(e, SampleDone)
        else e
        for e in events_of(Level.ON, FAST, 8.0)
    ]
    assert contradictions(bare) == {}
    without_looks = [
        replace(e, result=replace(e.result, window=Window(standby_names=NAMES))) if isinstance(e, SampleDone) else e
        for e in events_of(Level.ON, FAST, 8.0)
    ]
    assert contradictions(without_looks) == {}, "records of walproof 1.0.0 hold no looks"


def test_a_mix_is_judged_by_its_share_of_remote_levels() -> None:
    mix = ((Level.ON, 10.0), (Level.LOCAL, 90.0))
    arm = Arm(Level.ON, 16, mix=mix)
    scenario = Scenario(rtt_ms=8.0)
    for load, wrong in ((replace(WAITING, writers=0.1), False), (replace(FAST, flushes_ms=0.2), True)):
        samples = [SampleDone(0.0, load.sample(arm, scenario, block)) for block in range(1, 7)]
        why = contradictions([ScenarioEntered(0.0, scenario, {"n1-n2": 8.0}), *samples])
        assert bool(why) is wrong
        assert not wrong or "The mix was not in effect" in why[arm]


class Lying(FakePriced):
    """A cluster whose function sets `off`, so that arms at `on` wait for nothing."""

    load = FAST

    def run_sample(self, planned: Sample, seconds: float, seed: int) -> SampleResult:
        result = super().run_sample(planned, seconds, seed)
        if planned.arm.level is not Level.ON:
            return result
        return replace(
            self.load.sample(planned.arm, planned.scenario, planned.block, seconds), started_at=result.started_at
        )


ARMS = (Arm(Level.LOCAL, 4), Arm(Level.ON, 4))


def test_nothing_is_concluded_from_a_level_that_was_not_in_effect() -> None:
    events, _ = priced(Lying(), Question((Scenario(rtt_ms=8.0),), ARMS, budget_s=60))
    table = price_table(events)
    assert conclusion(table).startswith("The level on was not in effect") and "gains" not in conclusion(table)
    assert [Caveat.OTHER_LEVEL in price.caveats for price in table.arms] == [False, True]
    assert breakdowns(events) == ()
    assert {one.answer for one in required(parse_requirements("on>=0.5"), table)} == {Answer.UNDECIDED}


@pytest.fixture
def target() -> FakePriced:
    return Lying()


def test_no_advice_and_no_comparison_rests_on_it() -> None:
    honest, _ = priced(FakePriced(), Question((Scenario(rtt_ms=8.0),), ARMS, budget_s=60))
    lying, _ = priced(Lying(), Question((Scenario(rtt_ms=8.0),), ARMS, budget_s=60))
    levels = [
        {arm.level for arm in evidence_of([("r", events)], {"r": caveats_by_arm(events)}).priced}
        for events in (honest, lying)
    ]
    assert levels == [{Level.LOCAL, Level.ON}, {Level.LOCAL}]
    before, after = (next(p for p in price_table(e).arms if p.arm.level is Level.ON) for e in (honest, lying))
    assert _change(before, after, 2) == Cell("another level in effect", "quiet")


BUDGET = ("--budget", "60s")


@pytest.mark.parametrize("words", [
    ("--levels", "on", "--clients", "4", *BUDGET),
    ("--levels", "local,on", "--break-even", "--budget", "1h"),
    ("--tune", "--limit", "50ms", *BUDGET),
    ("--levels", "on", "--clients", "4", "--soak", "1min"),
],ids=["grid", "break-even", "tune", "soak"])  # fmt: skip
def test_the_run_is_undecided_and_says_why(run: Run, words: tuple[str, ...]) -> None:  # noqa: F811
    code, out, err = run(*words, "--rtt", "8ms", "--json")
    assert (code, err) == (4, "")
    found = json.loads(out)
    assert found["conclusion"].startswith("The level on was not in effect: transactions do not wait for a standby")
    assert found["not_in_effect"] == [found["conclusion"]]


def test_the_ids_of_others_are_counted_while_no_load_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.fixtures.priced_fake import Ticking

    clock: Clock = Ticking()
    sampler = Sampler({}, clock)
    ids = iter([100, 151])
    monkeypatch.setattr(sampler, "_counters", lambda _: Counters(0, 0, 0.0, 0, "", 0, next_id=next(ids)))
    monkeypatch.setattr(sampler, "_query", lambda *_: [("100",)])
    sampler.load_ended("n1")
    clock.pause(0.5)
    sampler.settle("n1", 1.0)
    assert sampler.others_ids == pytest.approx(100.0)
