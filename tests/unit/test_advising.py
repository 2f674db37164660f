"""Advice from records in memory: ranked, true to the evidence, deterministic, and refused where it must be."""

import json
import math
from dataclasses import replace

import pytest

from tests.fixtures.priced_records import CLOSE, described, drill, price_record, prove_record
from walproof.advising.advise import advise, as_json, beats, choose_environment, chosen, read_advice
from walproof.advising.evidence import evidence_of, prediction_interval
from walproof.advising.failover_timeouts import timeouts_for
from walproof.advising.requirements import class_of, classes_of, requirements_of
from walproof.errors import UndecidedError, UsageError
from walproof.model.advice import Advice, ClusterProfile, Requirements
from walproof.model.drill import Verdict
from walproof.model.event import Described, DrillDone, Ended, Event, SampleDone
from walproof.model.guarantee import Level, QuorumKind
from walproof.model.sample import Workload, WorkloadKind
from walproof.model.topology import Description
from walproof.pricing.estimates import caveats_by_arm


def advice(required: Requirements, *records: list[Event], classes: tuple[str, ...] = ()) -> Advice:
    named = [(str(i), events) for i, events in enumerate(records or (price_record(),))]
    found = evidence_of(named)
    return advise(found, required, choose_environment(found, None, None), classes_of(classes))


def test_rpo_zero_never_chooses_a_level_that_waits_for_nobody() -> None:
    given_ = advice(Requirements(rpo_s=0.0))
    assert given_.choices
    assert all(c.level.remote and c.quorum == 1 and c.strict for c in given_.choices)


def test_without_requirements_the_fastest_comes_first_with_its_trade_offs() -> None:
    first = advice(Requirements()).choices[0]
    assert first.level is Level.OFF
    assert "0.6 s" in first.trade_offs[0]


@pytest.mark.parametrize(
    ("never", "said"),
    [("", False), ('n3 (nosync: "yes")', True), ("n2 (state: stopped)", True), ("n2 (nostream: on), n3 (x)", True)],
)
def test_standbys_that_may_not_answer_are_no_spare(never: str, said: bool) -> None:
    facts = {"manager": "patroni", "patroni": "4.1.3", **({"patroni never names": never} if never else {})}
    there = Described(0.0, Description("c", ("n1", "n2", "n3"), facts))
    record = [there if event.kind == "described" else event for event in price_record()]
    (first, *_) = advice(Requirements(rpo_s=0.0), record).choices
    assert any("any one's restart stops writes" in sentence for sentence in first.trade_offs) is said


SIMULATED = Described(0.0, Description("sim", ("n1", "n2", "n3"), {"kind": "simulated, not a measurement"}))
WITHOUT_MANAGER = [described(manager="") if e.kind == "described" else e for e in price_record()]


@pytest.mark.parametrize(
    ("required", "record", "limit", "nearest"),
    [
        (
            Requirements(rpo_s=0.0),
            price_record(names=""),
            "local keeps acknowledged commits on the leader only",
            "price remote levels",
        ),
        (Requirements(min_tps=1e6), price_record(), "processors", "off"),
        (Requirements(rpo_s=0.0, max_commit_latency_ms=5.0), price_record(rtt_ms=10.0), "round trip, 10 ms", ""),
        (Requirements(rto_s=10.0), price_record(), "ttl cannot go under 20 s", "--rto 23s"),
        (Requirements(rto_s=60.0), WITHOUT_MANAGER, "is promoted here: there is no failover manager", "run"),
    ],
    ids=["no standby named", "throughput", "round trip", "Patroni's floor", "no manager"],
)
def test_what_cannot_be_met_is_refused_with_its_limit_and_the_nearest(
    required: Requirements, record: list[Event], limit: str, nearest: str
) -> None:
    (refused,) = advice(required, record).refused
    assert limit in refused.limit
    assert refused.nearest.startswith(nearest) and refused.nearest
    assert refused.requirement.startswith("--")


def test_a_drill_that_lost_commits_excludes_the_level() -> None:
    weak = advice(Requirements(rpo_s=0.0), price_record(), prove_record(Level.REMOTE_WRITE, broken=True))
    assert Level.REMOTE_WRITE not in {c.level for c in weak.choices}


def test_drills_are_listed_with_their_bound_and_missing_ones_as_assumptions() -> None:
    with_proof = advice(Requirements(rpo_s=0.0), price_record(), prove_record(Level.ON))
    on = next(c for c in with_proof.choices if c.level is Level.ON)
    assert any("10 of 10 drills (P(loss), 95 % upper bound: 26 %)" in text for text in on.proven)
    assert not any("no drill" in text for text in on.assumed)
    assert on.rto_s is not None
    unproven = advice(Requirements(rpo_s=0.0)).choices[0]
    assert any("no drill" in text for text in unproven.assumed)


ANY_1 = "ANY 1 (n2,n3)"


def test_what_was_drilled_and_held_comes_first_whatever_is_promised_more() -> None:
    """As on a real cluster: remote_apply stands within 15 % of on, and was never drilled."""
    proved = (prove_record(Level.OFF, 1, broken=True), prove_record(Level.ON, 1, names=ANY_1))
    made = advice(Requirements(rpo_s=0.0), price_record(prices=CLOSE), *proved)
    assert (made.choices[0].level, made.choices[0].undecided, made.prove) == (Level.ON, "", "")
    others = {c.level: c.undecided for c in made.choices if c.level is not Level.ON}
    assert others[Level.REMOTE_APPLY] == "remote_apply was never drilled (on held, and remote_apply promises no less)"
    (unrequired, *_) = advice(Requirements(), price_record(prices=CLOSE), proved[1]).choices
    assert unrequired.level is Level.ON


def test_a_level_that_is_named_comes_first_and_is_called_undecided() -> None:
    named = requirements_of([("rpo", "0"), ("level", "remote_apply")])
    made = advice(named, price_record(), prove_record(Level.ON))
    assert {c.level for c in made.choices} == {Level.REMOTE_APPLY}
    assert "never drilled" in made.choices[0].undecided and "--levels remote_apply" in made.prove
    assert read_advice(json.dumps(as_json(made))) == made
    (refused,) = advice(Requirements(level=Level.ON), price_record(names="")).refused
    assert refused.nearest == "walproof price --levels on"


def test_where_nothing_was_drilled_nothing_is_proven_and_the_command_is_named() -> None:
    made = advice(Requirements(rpo_s=0.0))
    assert all("was never drilled" in c.undecided for c in made.choices)
    assert made.prove == "walproof prove --target lab --levels remote_write,on,remote_apply --fault kill"


@pytest.mark.parametrize(
    ("drills", "why"),
    [
        (prove_record(Level.ON, fault="switchover", loss=""), "was drilled under switchover only, where no leader was"),
        (prove_record(Level.ON, loss="postgres crash"), "was drilled under kill only, where no leader was gone"),
        (prove_record(Level.ON, verdict=Verdict.UNDECIDED), "was drilled, and every drill was left undecided"),
        (prove_record(Level.ON, names="ANY 2 (n2,n3)"), "was drilled with ANY 2, never with ANY 1"),
        (prove_record(Level.REMOTE_APPLY), "was never drilled (remote_apply held, and promises more)"),
        (prove_record(Level.REMOTE_WRITE), "was never drilled (remote_write held, and on promises no less)"),
        ([SIMULATED, *prove_record(Level.ON)], "was drilled on a simulated cluster only"),
    ],
    ids=["no takeover", "in place", "undecided", "another quorum", "stronger", "weaker", "simulated"],
)
def test_drills_of_something_else_decide_nothing(drills: list[Event], why: str) -> None:
    made = advice(Requirements(rpo_s=0.0, level=Level.ON), price_record(), drills)
    assert made.choices[0].undecided.startswith(f"on {why}"), made.choices[0].undecided
    assert not made.choices[0].proven or "where no leader" in why
    assert "--levels on" in made.prove


@pytest.mark.parametrize(
    ("proved", "refused"),
    [
        ([prove_record(Level.ON, broken=True)], True),
        ([prove_record(Level.ON, broken=True, names="ANY 2 (n2,n3)")], True),
        ([prove_record(Level.REMOTE_APPLY, broken=True)], True),
        ([prove_record(Level.REMOTE_APPLY, broken=True), prove_record(Level.ON)], False),
        ([prove_record(Level.REMOTE_WRITE, broken=True)], False),
    ],
    ids=["itself", "larger quorum", "stronger", "stronger, itself held", "weaker"],
)
def test_a_loss_speaks_against_every_weaker_promise_that_did_not_hold(proved: list[list[Event]], refused: bool) -> None:
    made = advice(Requirements(rpo_s=0.0, level=Level.ON), price_record(), *proved)
    assert bool(made.refused) is refused


def test_what_was_never_drilled_drops_nothing_that_was() -> None:
    faster = price_record(prices={Level.ON: (720, 2.1), Level.REMOTE_APPLY: (900, 1.5)})
    made = advice(Requirements(rpo_s=0.0), faster, prove_record(Level.ON))
    assert (made.choices[0].level, made.prove) == (Level.ON, "")


def test_a_class_is_given_a_level_that_was_drilled() -> None:
    (first, *_) = advice(Requirements(), price_record(), prove_record(Level.ON), classes=("payments:rpo=0",)).choices
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
    made = advice(Requirements(rpo_s=0.0), price_record(), [staging, drill(Level.ON)])
    assert "drills are of cnpg:staging/pg, prices of lab: what held there may not hold here" in made.caveats
    assert made.choices[0].undecided == ""


def test_a_bounded_rpo_is_held_against_what_drills_lost() -> None:
    ok = advice(Requirements(rpo_s=2.0), price_record(), prove_record(Level.LOCAL, broken=True, rpo_s=1.0))
    assert Level.LOCAL in {c.level for c in ok.choices}
    lost = advice(Requirements(rpo_s=2.0), price_record(), prove_record(Level.LOCAL, broken=True, rpo_s=9.0))
    assert Level.LOCAL not in {c.level for c in lost.choices}


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


CNPG = Described(0.0, Description("cnpg:db/pg", ("pg-1", "pg-2", "pg-3"), {"manager": "cloudnative-pg"}))


def under_cloudnative_pg(rto_s: float, *drills: DrillDone) -> Advice:
    """Advice for a record that was priced there, with those drills of the leader at on."""
    priced = [CNPG if event.kind == "described" else event for event in price_record()]
    return advice(Requirements(rpo_s=0.0, rto_s=rto_s), priced, [CNPG, *drills])


def test_an_rto_under_cloudnative_pg_is_what_its_drills_took() -> None:
    drills = [drill(Level.ON, rto_s=12.0), drill(Level.ON, fault="kill-member", rto_s=26.0)]
    assert under_cloudnative_pg(30.0, *drills).choices
    (refused,) = under_cloudnative_pg(20.0, *drills).refused
    assert refused.limit.startswith("after kill-member writes were away for 26 s (median of 1 drill)")
    assert refused.nearest == "--rto 26s"


def test_a_frozen_primary_is_an_assumption_because_no_setting_replaces_it() -> None:
    drills = [drill(Level.ON, rto_s=12.0), drill(Level.ON, fault="freeze", rto_s=161.0)]
    (first, *_) = under_cloudnative_pg(60.0, *drills).choices
    assert any("K1" in text and "161 s" in text for text in first.assumed)
    assert any("up to 121 s on another cluster" in text for text in first.assumed)
    cut = drill(Level.ON, fault="isolate", rto_s=55.0)
    assert not any("121" in text for c in under_cloudnative_pg(60.0, *drills, cut).choices for text in c.assumed)


def test_without_drills_an_rto_under_cloudnative_pg_is_what_another_cluster_took() -> None:
    (first, *_) = under_cloudnative_pg(60.0).choices
    assert any("no failover in the records" in text for text in first.assumed)
    (refused,) = under_cloudnative_pg(5.0).refused
    assert refused.nearest.startswith("--rto 10s")


def test_reading_your_writes_needs_every_standby() -> None:
    refused = advice(Requirements(read_your_writes=True)).refused
    assert "1 of 2 standbys" in refused[0].limit
    met = advice(Requirements(read_your_writes=True), price_record(names="ANY 2 (n2,n3)")).choices
    assert {c.level for c in met} == {Level.REMOTE_APPLY}


def test_dominated_choices_are_dropped() -> None:
    given_ = advice(Requirements(rpo_s=0.0))
    found = evidence_of([("0", price_record())])
    arms = {(a.level, a.clients): a for a in found.priced}
    for one in given_.choices:
        mine = arms[one.level, one.clients]
        assert not any(beats(other, mine) for other in found.priced)


def test_within_a_tenth_the_stronger_level_is_ranked_first() -> None:
    assert advice(Requirements(rpo_s=0.0)).choices[0].level is not Level.REMOTE_WRITE


def test_classes_get_their_own_levels() -> None:
    given_ = advice(Requirements(), classes=("payments:rpo=0", "logs:rpo=2s"))
    levels = {c.name: c.level for c in given_.choices[0].classes}
    assert levels["payments"].remote
    assert not levels["logs"].remote
    assert given_.choices[0].level.remote


def test_the_same_record_gives_the_same_advice() -> None:
    required = Requirements(rpo_s=0.0, min_tps=500.0)
    assert as_json(advice(required)) == as_json(advice(required))


def test_advice_survives_json_and_a_choice_is_found_by_number() -> None:
    given_ = advice(Requirements(rpo_s=0.0), classes=("payments:rpo=0",))
    back = read_advice(json.dumps(as_json(given_)))
    assert back == given_
    assert chosen(back, 1) == given_.choices[0]
    with pytest.raises(UsageError, match="no choice 9"):
        chosen(back, 9)
    for text in ("{}", "[]", "nothing"):
        with pytest.raises(UsageError, match="not advice"):
            read_advice(text)


def test_a_choice_of_one_client_is_in_the_singular() -> None:
    texts = {c.text for c in advice(Requirements(rpo_s=0.0)).choices}
    assert any(text.endswith(", 1 client") for text in texts)
    assert not any("1 clients" in text for text in texts)


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


@pytest.mark.parametrize("rto", [23.0, 25.0, 30.0, 45.0, 120.0])
def test_timeouts_keep_the_rto_and_patronis_own_rules(rto: float) -> None:
    times = timeouts_for(rto, ClusterProfile())
    assert times.leader_failure_s <= rto
    assert times.ttl >= 20
    assert times.loop_wait + 2 * times.retry_timeout <= times.ttl
    assert times.retry_timeout >= 3


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("payments", "write it like"),
        ("a:rto=3s", "cluster"),
        ("a:speed=1", "requirements are"),
        (":rpo=0", "write it like"),
    ],
)
def test_a_class_that_is_not_valid_is_refused(text: str, word: str) -> None:
    with pytest.raises(UsageError) as wrong:
        class_of(text)
    assert word in f"{wrong.value.message} {wrong.value.hint}"


@pytest.mark.parametrize("text", ["-5", "nan", "inf", "many"])
def test_a_throughput_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        requirements_of([("min-tps", text)])


def test_nine_of_ten_next_runs_fall_into_the_interval() -> None:
    import random

    dice = random.Random(5)
    hits = 0
    for _ in range(400):
        level = [dice.gauss(0.0, 0.08) for _ in range(3)]
        runs = [[1000 * math.exp(b + dice.gauss(0, 0.05)) for _ in range(6)] for b in level]
        hits += prediction_interval({"a": runs[0], "b": runs[1]}, "tps").covers(sum(runs[2]) / 6)
    assert hits >= 360


def test_an_expected_loss_is_no_drill_that_held() -> None:
    lost = drill(Level.OFF, broken=True)
    expected = replace(lost, drill=replace(lost.drill, verdict=Verdict.EXPECTED_LOSS))
    (summary,) = evidence_of([("proved", [described(), expected])]).drills
    assert (summary.held, summary.broken) == (0, 1)


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
