"""Advice from records in memory: ranked, true to the evidence, deterministic, and refused where it must be."""

import json
import math
import random
from dataclasses import replace

import pytest

from tests.fixtures.priced_records import CLOSE, advice, described, drill, price_record, prove_record
from tests.fixtures.tiers import each
from walproof.advising.advise import advise, as_json, choose_environment, chosen, read_advice
from walproof.advising.evidence import evidence_of, prediction_interval
from walproof.advising.failover_timeouts import timeouts_for
from walproof.advising.requirements import class_of, classes_of, requirements_of
from walproof.errors import UndecidedError, UsageError
from walproof.model.advice import ClusterProfile, Requirements, YearlyRisk
from walproof.model.drill import Verdict
from walproof.model.estimate import Estimate
from walproof.model.event import Described, Ended, Event, SampleDone
from walproof.model.guarantee import Level, QuorumKind
from walproof.model.sample import Workload, WorkloadKind
from walproof.model.topology import Description
from walproof.pricing.estimates import caveats_by_arm

ANY_1, ANY_2 = "ANY 1 (n2,n3)", "ANY 2 (n2,n3)"
ON_HELD, ZERO = prove_record(Level.ON), Requirements(rpo_s=0.0)
CLOSE_PRICES = price_record(prices=CLOSE)
FASTER = price_record(prices={Level.ON: (720, 2.1), Level.REMOTE_APPLY: (900, 1.5)})
LOCAL_LOST = [prove_record(Level.LOCAL, broken=True, rpo_s=rpo_s) for rpo_s in (1.0, 9.0)]
NEVER = "was never drilled"
# what is required; the records; the first choices: level, clients, what is undecided of it; the levels to prove
FIRST: list[tuple[Requirements, list[list[Event]], list[str], str]] = [
    (Requirements(), [], [f"off 16 off {NEVER}", f"local 16 local {NEVER}"], "off,local,remote_write,on,remote_apply"),
    (ZERO, [], [f"on 16 on {NEVER}", f"remote_write 16 remote_write {NEVER}"], "remote_write,on,remote_apply"),
    (ZERO, [price_record(), prove_record(Level.REMOTE_WRITE, broken=True)],
     [f"{level} {clients} {level} {NEVER}" for clients in (16, 1) for level in ("remote_apply", "on")],
     "on,remote_apply"),
    (ZERO, [price_record(), ON_HELD],
     ["on 16 ", "on 1 ", f"remote_write 16 remote_write {NEVER} (on held, and promises more)"], ""),
    # As on a real cluster: remote_apply stands within 15 % of on, and was never drilled.
    (ZERO, [CLOSE_PRICES, prove_record(Level.OFF, 1, broken=True), prove_record(Level.ON, 1, names=ANY_1)],
     ["on 16 ", "on 1 ", f"remote_apply 16 remote_apply {NEVER} (on held, and remote_apply promises no less)"], ""),
    (Requirements(), [CLOSE_PRICES, prove_record(Level.ON, 1, names=ANY_1)], ["on 16 ", "on 1 "], ""),
    (ZERO, [FASTER, ON_HELD], ["on 16 "], ""),
    (Requirements(rpo_s=2.0), [price_record(), LOCAL_LOST[0]], ["local 16 "], ""),
    (Requirements(rpo_s=2.0), [price_record(), LOCAL_LOST[1]], [f"off 16 off {NEVER}", f"on 16 on {NEVER}"],
     "off,remote_write,on,remote_apply"),
    (Requirements(read_your_writes=True), [price_record(names=ANY_2)],
     [f"remote_apply {clients} remote_apply {NEVER}" for clients in (16, 1)], "remote_apply"),
]  # fmt: skip


@each(FIRST)
def test_what_comes_first_meets_what_is_required_held_where_it_was_drilled_and_else_names_the_drill(
    required: Requirements, records: list[list[Event]], first: list[str], prove: str
) -> None:
    """Strongest within a tenth, the fastest before; what lost more than may be lost is no choice."""
    made = advice(required, *records)
    assert [f"{c.level} {c.clients} {c.undecided}" for c in made.choices][: len(first)] == first
    assert made.prove == (f"walproof prove --target lab --levels {prove} --fault kill" if prove else "")
    if required.rpo_s == 0.0:
        assert all(c.level.remote and c.quorum == 1 and c.strict for c in made.choices)


def test_a_choice_says_its_trade_offs_and_one_client_is_in_the_singular() -> None:
    choices = advice(Requirements()).choices
    assert "0.6 s" in choices[0].trade_offs[0]
    texts = {c.text for c in advice(ZERO).choices}
    assert any(text.endswith(", 1 client") for text in texts)
    assert not any("1 clients" in text for text in texts)


# what a record says of standbys that Patroni never names, whether every restart of one stops writes
SPARES = [("", False), ('n3 (nosync: "yes")', True), ("n2 (state: stopped)", True), ("n2 (nostream: on), n3 (x)", True)]


@each(SPARES)
def test_standbys_that_may_not_answer_are_no_spare(never: str, stops: bool) -> None:
    facts = {"manager": "patroni", "patroni": "4.1.3", **({"patroni never names": never} if never else {})}
    record = of(Description("c", ("n1", "n2", "n3"), facts), price_record())
    (first, *_) = advice(ZERO, record).choices
    assert any("any one's restart stops writes" in sentence for sentence in first.trade_offs) is stops


def of(cluster: Description, record: list[Event]) -> list[Event]:
    """The record as if it were of that cluster."""
    return [Described(0.0, cluster) if event.kind == "described" else event for event in record]


SIMULATED = Described(0.0, Description("sim", ("n1", "n2", "n3"), {"kind": "simulated, not a measurement"}))
CNPG = Description("cnpg:db/pg", ("pg-1", "pg-2", "pg-3"), {"manager": "cloudnative-pg"})
UNDER_CNPG = of(CNPG, price_record())
SLOW_KILL: list[Event] = [
    Described(0.0, CNPG),
    drill(Level.ON, rto_s=12.0),
    drill(Level.ON, fault="kill-member", rto_s=26.0),
]
# what is required; the records; a part of the limit; the nearest begins with
REFUSED: list[tuple[Requirements, list[list[Event]], str, str]] = [
    (ZERO, [price_record(names="")], "local keeps acknowledged commits on the leader only", "price remote levels"),
    (Requirements(level=Level.ON), [price_record(names="")], "", "walproof price --levels on"),
    (Requirements(min_tps=1e6), [price_record()], "processors", "off"),
    (Requirements(rpo_s=0.0, max_commit_latency_ms=5.0), [price_record(rtt_ms=10.0)], "round trip, 10 ms", "local"),
    (Requirements(rto_s=10.0), [price_record()], "ttl cannot go under 20 s", "--rto 23s"),
    (Requirements(rto_s=60.0), [of(Description("lab", ("n1",)), price_record())],
     "is promoted here: there is no failover manager", "run"),
    (Requirements(rpo_s=0.0, rto_s=20.0), [UNDER_CNPG, SLOW_KILL],
     "after kill-member writes were away for 26 s (median of 1 drill)", "--rto 26s"),
    (Requirements(rpo_s=0.0, rto_s=5.0), [UNDER_CNPG], "", "--rto 10s"),
    (Requirements(read_your_writes=True), [price_record()], "1 of 2 standbys", ""),
]  # fmt: skip


@each(REFUSED)
def test_what_cannot_be_met_is_refused_with_its_limit_and_the_nearest(
    required: Requirements, records: list[list[Event]], limit: str, nearest: str
) -> None:
    (refused,) = advice(required, *records).refused
    assert limit in refused.limit
    assert refused.nearest.startswith(nearest) and refused.nearest
    assert refused.requirement.startswith("--")


def test_drills_are_listed_with_their_bound_and_missing_ones_as_assumptions() -> None:
    with_proof = advice(ZERO, price_record(), ON_HELD)
    on = next(c for c in with_proof.choices if c.level is Level.ON)
    assert any("10 of 10 drills (P(loss), 95 % upper bound: 26 %)" in text for text in on.proven)
    assert not any("no drill" in text for text in on.assumed)
    assert on.rto_s is not None
    unproven = advice(ZERO).choices[0]
    assert any("no drill" in text for text in unproven.assumed)


def test_a_level_that_is_named_comes_first_and_is_called_undecided() -> None:
    named = requirements_of([("rpo", "0"), ("level", "remote_apply")])
    made = advice(named, price_record(), ON_HELD)
    assert {c.level for c in made.choices} == {Level.REMOTE_APPLY}
    assert "never drilled" in made.choices[0].undecided and "--levels remote_apply" in made.prove


# drills, what they leave undecided of `on`
ELSE: list[tuple[list[Event], str]] = [
    (prove_record(Level.ON, fault="switchover", loss=""), "was drilled under switchover only, where no leader was"),
    (prove_record(Level.ON, loss="postgres crash"), "was drilled under kill only, where no leader was gone"),
    (prove_record(Level.ON, verdict=Verdict.UNDECIDED), "was drilled, and every drill was left undecided"),
    (prove_record(Level.ON, names=ANY_2), "was drilled with ANY 2, never with ANY 1"),
    (prove_record(Level.REMOTE_APPLY), "was never drilled (remote_apply held, and promises more)"),
    (prove_record(Level.REMOTE_WRITE), "was never drilled (remote_write held, and on promises no less)"),
    ([SIMULATED, *ON_HELD], "was drilled on a simulated cluster only"),
]


@each(ELSE)
def test_drills_of_something_else_decide_nothing(drills: list[Event], why: str) -> None:
    made = advice(Requirements(rpo_s=0.0, level=Level.ON), price_record(), drills)
    assert made.choices[0].undecided.startswith(f"on {why}"), made.choices[0].undecided
    assert not made.choices[0].proven or "where no leader" in why
    assert "--levels on" in made.prove


REMOTE_APPLY_LOST = prove_record(Level.REMOTE_APPLY, broken=True)
# what was drilled: itself, a larger quorum, a stronger level, that where it held itself, a weaker level; is on refused
SPEAKS: list[tuple[list[list[Event]], bool]] = [
    ([prove_record(Level.ON, broken=True)], True),
    ([prove_record(Level.ON, broken=True, names=ANY_2)], True),
    ([REMOTE_APPLY_LOST], True),
    ([REMOTE_APPLY_LOST, ON_HELD], False),
    ([prove_record(Level.REMOTE_WRITE, broken=True)], False),
]


@each(SPEAKS)
def test_a_loss_speaks_against_every_weaker_promise_that_did_not_hold(proved: list[list[Event]], refused: bool) -> None:
    made = advice(Requirements(rpo_s=0.0, level=Level.ON), price_record(), *proved)
    assert bool(made.refused) is refused


def test_each_class_gets_a_level_of_its_own_and_one_that_was_drilled_where_there_is_one() -> None:
    made = advice(Requirements(), classes=("payments:rpo=0", "logs:rpo=2s")).choices[0]
    levels = {c.name: c.level for c in made.classes}
    assert levels["payments"].remote and not levels["logs"].remote
    assert made.level.remote
    (first, *_) = advice(Requirements(), price_record(), ON_HELD, classes=("payments:rpo=0",)).choices
    assert [c.level for c in first.classes] == [Level.ON]


def test_caveats_of_prices_and_of_records_stand_beside_the_choices_that_rest_on_them() -> None:
    priced = price_record(outside=True)
    proved = [*prove_record(Level.ON, 2), drill(Level.ON, fault="freeze", verdict=Verdict.UNDECIDED)]
    records = [
        ("p", priced),
        ("d", [*proved, Ended(9.0, "interrupted")]),
        ("a", prove_record(Level.OFF, 1, broken=True)),
    ]
    found = evidence_of(records, {name: caveats_by_arm(events) for name, events in records})
    (first, *_) = advise(found, Requirements(rpo_s=0.0), choose_environment(found, None, None)).choices
    assert first.level is Level.ON
    assert "load from outside the cluster" in first.caveats
    assert "freeze of the leader: 1 drill left undecided, neither held nor lost" in first.caveats
    assert "d was interrupted: it holds less than was asked" in first.caveats
    assert not any(caveat.startswith("a ") for caveat in first.caveats), "of drills at another level"


def test_drills_of_another_cluster_are_named_with_the_priced_one() -> None:
    staging = Described(0.0, Description("cnpg:staging/pg", ("pg-1",), {"manager": "cloudnative-pg"}))
    made = advice(ZERO, price_record(), [staging, drill(Level.ON)])
    assert "drills are of cnpg:staging/pg, prices of lab: what held there may not hold here" in made.caveats
    assert made.choices[0].undecided == ""


def test_samples_without_a_latency_are_no_evidence_and_skewed_keys_are_a_workload_of_their_own() -> None:
    (first, *_) = (e for e in price_record() if isinstance(e, SampleDone))

    def changed(workload: Workload, **more: object) -> SampleDone:
        sample = replace(first.result.sample, arm=replace(first.result.sample.arm, workload=workload))
        return replace(first, result=replace(first.result, sample=sample, **more))  # type: ignore[arg-type]

    command = changed(Workload(WorkloadKind.SCRIPT, driver="sh bench.sh"), histogram={}, mean_ms=0.0)
    skewed = changed(Workload(skew="zipfian:1.1"))
    own = changed(Workload(WorkloadKind.SCRIPT, script="/a.sql", variables=(("batch", "5"),)))
    found = evidence_of([("0", [described(), first, command, skewed, own])])
    assert {arm.environment.workload for arm in found.priced} == {
        "tpcb-like", "tpcb-like, keys zipfian:1.1", "script, batch=5",
    }  # fmt: skip


def test_under_cloudnative_pg_an_rto_is_what_drills_took_and_a_frozen_primary_is_assumed() -> None:
    """No setting of it replaces a frozen primary (K1); without drills, what another cluster took is assumed."""
    within = Requirements(rpo_s=0.0, rto_s=60.0)
    assert advice(Requirements(rpo_s=0.0, rto_s=30.0), UNDER_CNPG, SLOW_KILL).choices
    killed, thawed = drill(Level.ON, rto_s=12.0), drill(Level.ON, fault="freeze", rto_s=161.0)
    frozen: list[Event] = [Described(0.0, CNPG), killed, thawed]
    (first, *_) = advice(within, UNDER_CNPG, frozen).choices
    assert any("K1" in text and "161 s" in text for text in first.assumed)
    assert any("up to 121 s on another cluster" in text for text in first.assumed)
    cut = advice(within, UNDER_CNPG, [*frozen, drill(Level.ON, fault="isolate", rto_s=55.0)])
    assert not any("121" in text for c in cut.choices for text in c.assumed)
    (undrilled, *_) = advice(within, UNDER_CNPG).choices
    assert any("no failover in the records" in text for text in undrilled.assumed)


def test_advice_survives_json_and_a_choice_is_found_by_number() -> None:
    year = YearlyRisk(Level.ON, QuorumKind.ANY, 1, True, HALF, HALF, HALF)
    found = replace(evidence_of([("r", price_record()), ("d", ON_HELD)]), years=(year,))
    required = Requirements(loss_per_year=0.9, level=Level.ON)
    made = advise(found, required, choose_environment(found, None, None), classes_of(("payments:rpo=0",)))
    assert made.choices[0].year == year and made.choices[0].classes
    back = read_advice(json.dumps(as_json(made)))
    assert back == made
    assert chosen(back, 1) == made.choices[0]
    with pytest.raises(UsageError, match="no choice 9"):
        chosen(back, 9)
    for text in ("{}", "[]", "nothing"):
        with pytest.raises(UsageError, match="not advice"):
            read_advice(text)


HALF = Estimate(0.5, 0.4, 0.6)


def test_several_round_trips_need_a_choice() -> None:
    found = evidence_of([("a", price_record(rtt_ms=0.5)), ("b", price_record(rtt_ms=10.0))])
    with pytest.raises(UsageError, match="several environments"):
        choose_environment(found, None, None)
    assert choose_environment(found, 10.2, None).rtt_ms == 10.0
    with pytest.raises(UsageError, match="nothing was priced"):
        choose_environment(found, 50.0, None)
    with pytest.raises(UndecidedError):
        choose_environment(evidence_of([("p", prove_record(Level.ON))]), None, None)


def test_the_quorum_is_what_was_in_effect_not_what_was_asked() -> None:
    found = evidence_of([("0", price_record(names="FIRST 2 (n2,n3)"))])
    assert {(a.quorum_kind, a.quorum) for a in found.priced} == {(QuorumKind.FIRST, 2)}


@each([23.0, 25.0, 30.0, 45.0, 120.0])
def test_timeouts_keep_the_rto_and_patronis_own_rules(rto: float) -> None:
    times = timeouts_for(rto, ClusterProfile())
    assert times.leader_failure_s <= rto
    assert times.ttl >= 20
    assert times.loop_wait + 2 * times.retry_timeout <= times.ttl
    assert times.retry_timeout >= 3


# a class of transactions, or what is required: name and text; what the sentence or its hint says
IMPOSSIBLE: list[tuple[str | tuple[str, str], str]] = [
    ("payments", "write it like"), ("a:rto=3s", "cluster"), ("a:speed=1", "requirements are"),
    (":rpo=0", "write it like"), ("payments:loss-per-year=1e-6", "not for one class"),
    *((("min-tps", text), "") for text in ("-5", "nan", "inf", "many")),
    *((("availability", text), "a percentage below 100") for text in ("100", "0", "four nines")),
    *((("loss-per-year", text), "a probability above 0") for text in ("0", "1", "nan")),
]  # fmt: skip


@each(IMPOSSIBLE)
def test_what_cannot_be_required_is_refused_in_one_sentence(given_: str | tuple[str, str], word: str) -> None:
    with pytest.raises(UsageError) as wrong:
        class_of(given_) if isinstance(given_, str) else requirements_of([given_])
    assert word in f"{wrong.value.message} {wrong.value.hint}"
    assert "\n" not in wrong.value.message


def test_nine_of_ten_next_runs_fall_into_the_interval() -> None:
    dice = random.Random(5)
    hits = 0
    for _ in range(400):
        level = [dice.gauss(0.0, 0.08) for _ in range(3)]
        runs = [[1000 * math.exp(b + dice.gauss(0, 0.05)) for _ in range(6)] for b in level]
        hits += prediction_interval({"a": runs[0], "b": runs[1]}, "tps").covers(sum(runs[2]) / 6)
    assert hits >= 360


def test_drills_of_another_loss_in_fact_or_left_undecided_are_not_pooled() -> None:
    one = drill(Level.ON)
    lost_leader, in_place = replace(one.drill, loss="leader gone"), replace(one.drill, loss="postgres crash")
    events = [replace(one, drill=d) for d in (lost_leader, lost_leader, in_place)]
    events += [replace(one, drill=replace(one.drill, verdict=Verdict.UNDECIDED))]
    found = {s.loss: s for s in evidence_of([("proved", [described(), *events])]).drills}
    assert {loss: (s.held, s.undecided) for loss, s in found.items()} == {
        "leader gone": (2, 1),
        "postgres crash": (1, 1),
    }
    assert "of the leader (leader gone): held in 2 of 2 drills" in found["leader gone"].text
    assert found["leader gone"].text.endswith(", 1 undecided")
    lost = drill(Level.OFF, broken=True)
    expected = replace(lost, drill=replace(lost.drill, verdict=Verdict.EXPECTED_LOSS))
    (summary,) = evidence_of([("proved", [described(), expected])]).drills
    assert (summary.held, summary.broken) == (0, 1), "an expected loss is no drill that held"
