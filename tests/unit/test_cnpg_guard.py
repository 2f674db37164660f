"""The guard of a frozen primary at work, in virtual time: what it sends, and that it sends nothing else, nor late."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from tests.fixtures.kubernetes.access import Rule
from tests.fixtures.kubernetes.state import Cut
from tests.fixtures.kubernetes.virtual_guard import World, unanswered, world
from tests.fixtures.tiers import each
from walproof.errors import UsageError
from walproof.guarding.kubernetes_freeze import Memory, State
from walproof.guarding.kubernetes_sight import Way
from walproof.targets.cnpg.guard import HIBERNATION, MANAGER, SERVICE
from walproof.targets.cnpg.kubernetes_api import ApiError
from walproof.targets.cnpg.state_and_doctor_facts import FENCED, RECONCILIATION, TAKEN

LEARNS_S = 15.0
STEPS = (("patch", "clusters/pg"), ("delete", "pods/pg-1"), ("patch", "leases/pg"))
"""All that it ever sends, in order."""


def freeze(w: World) -> None:
    w.cnpg.freeze(w.cnpg.state.primary)


def annotated(w: World, name: str, value: str) -> None:
    w.cnpg.store.modify(
        "Cluster", "pg", lambda one: one["metadata"].setdefault("annotations", {}).update({name: value})
    )


def synchronous(w: World, **changed: Any) -> None:
    w.cnpg.store.modify("Cluster", "pg", lambda one: one["spec"]["postgresql"]["synchronous"].update(changed))


def changed(w: World, **given: Any) -> None:
    w.cnpg.store.modify("Cluster", "pg", lambda one: one["spec"].update(given))


def restarted(w: World) -> None:
    """A guard that begins anew, once this is seen."""
    w.run(w.guards[-1], 1.5)
    w.guards[-1].memory = Memory()


def test_a_frozen_primary_is_replaced_by_three_writes_and_nothing_is_lost() -> None:
    with world() as w:
        guard, api = w.guard()
        w.run(guard, LEARNS_S, calm=True)
        assert guard.status().ready and api.writes == []
        uid = (w.cnpg.store.find("Pod", "pg-1") or {})["metadata"]["uid"]
        freeze(w)
        w.run(guard, 30.0)
        assert [write[:2] for write in api.writes] == list(STEPS)
        claim, delete, empty = (body for _, _, body in api.writes)
        assert claim["metadata"]["annotations"].keys() == {TAKEN} and claim.keys() == {"metadata"}
        assert claim["metadata"]["annotations"][TAKEN].startswith(f"walproof-guard-a {uid} ")
        assert delete == {"gracePeriodSeconds": 1, "preconditions": {"uid": uid}}, "in order, never by force"
        assert empty["spec"] == {"holderIdentity": None}
        assert claim["metadata"]["resourceVersion"] and empty["metadata"]["resourceVersion"]
        assert (w.cnpg.state.primary, w.cnpg.state.phase) != ("pg-1", "Failing over")
        assert w.outage_s < 13.0 and guard.status().takeovers == 1


def test_a_second_freeze_within_ten_minutes_is_left_to_the_operator() -> None:
    with world() as w:
        guard, api = w.guard()
        w.run(guard, LEARNS_S, calm=True)
        freeze(w)
        w.run(guard, 30.0)
        freeze(w)
        w.run(guard, 10.0)
        assert len(api.writes) == 3 and "one in 600 s" in guard.status().why_not
        again, other = w.guard(name="walproof-guard-b")
        w.run(again, 10.0)
        assert other.writes == [] and not again.status().ready


DISTURBANCES: dict[str, Callable[[World], Any]] = {
    "a switchover": lambda w: w.cnpg._happens(w.cnpg.machine.switch_over, "pg-2"),
    "a rolling update": lambda w: w.cnpg.store.modify(
        "Cluster", "pg", lambda one: one["spec"]["resources"]["requests"].update(cpu="200m")
    ),
    "fencing": lambda w: annotated(w, FENCED, '["pg-2"]'),
    "hibernation": lambda w: annotated(w, HIBERNATION, "on"),
    "reconciliation paused": lambda w: annotated(w, RECONCILIATION, "disabled"),
    "its node lost": lambda w: w.cnpg.lose_node(),
    "its manager does not answer": lambda w: w.deaf.add(MANAGER),
    "a standby does not answer": lambda w: w.deaf.add("pg-2"),
    "a standby is not Ready": lambda w: w.cnpg._happens(lambda c, n: c.with_member(n, ready=False), "pg-2"),
    "a standby is on another timeline": lambda w: (w.forked.add("pg-2"), restarted(w)),  # type: ignore[func-returns-value]
    "an annotation that is not to be read": lambda w: annotated(w, TAKEN, "somebody yesterday"),
    "an annotation of a clock that is ahead": lambda w: annotated(w, TAKEN, f"g u {w.clock.now_s + 100}"),
    "an annotation without a time": lambda w: annotated(w, TAKEN, "walproof-guard-x"),
    "preferred": lambda w: synchronous(w, dataDurability="preferred"),
    "no failoverQuorum": lambda w: synchronous(w, failoverQuorum=False),
    "a failover that waits": lambda w: changed(w, failoverDelay=9),
    "a standby has much to replay": lambda w: w.cnpg._happens(lambda c, n: c.with_member(n, to_replay_s=200.0), "pg-3"),
    "long silence of WAL receivers": lambda w: setattr(w, "pings_s", 5.0),
    "no end of their silence": lambda w: setattr(w, "pings_s", 0.0),
}


@each(DISTURBANCES.values())
def test_while_something_else_is_under_way_a_frozen_primary_is_left_alone(happens: Callable[[World], Any]) -> None:
    with world() as w:
        guard, api = w.guard()
        w.run(guard, LEARNS_S, calm=True)
        happens(w)
        w.run(guard, 1.0)
        freeze(w)
        w.run(guard, 12.0, calm=True)
        assert api.writes == []
        assert guard.status().state in (State.NOT_READY, State.WATCHING)


HONEST: dict[str, Callable[[World], Any]] = {
    **{name: DISTURBANCES[name] for name in ("a switchover", "a rolling update", "its node lost")},
    "a standby cut off": lambda w: w.cnpg.cut("pg-3"),
    "the primary cut off for 5 s": lambda w: w.cnpg.cut("pg-1"),
    "its standbys cut off": lambda w: w.cnpg.cut("pg-1", Cut.PEERS),
    "the service away": lambda w: w.deaf.add(SERVICE),
    "killed": lambda w: w.cnpg.kill("pg-1"),
    "frozen and thawed": freeze,
    "nobody writes, both ways to it are lost": lambda w: (
        setattr(w, "writes", False),  # type: ignore[func-returns-value]
        w.deaf.update((SERVICE, "pg-1")),  # type: ignore[func-returns-value]
    ),
}


@each(HONEST.values())
def test_what_is_no_freeze_is_left_to_the_operator(happens: Callable[[World], Any]) -> None:
    with world() as w:
        guard, api = w.guard()
        w.run(guard, LEARNS_S, calm=True)
        happens(w)
        w.run(guard, 1.2)
        w.cnpg._happens(w.cnpg.machine.thaw, "pg-1")
        w.run(guard, 3.8)
        w.cnpg.mend("pg-1")
        w.run(guard, 20.0, calm=True)
        assert api.writes == []


@each([0.7, 1.5, 4.0])
def test_an_api_server_that_is_slow_is_no_reason_to_act_late(takes_s: float) -> None:
    with world() as w:
        guard, api = w.guard()
        w.run(guard, LEARNS_S, calm=True)
        api.takes_s = takes_s
        w.run(guard, 20.0, calm=True)
        freeze(w)
        w.run(guard, 20.0)
        assert api.writes == []


@pytest.mark.parametrize("step", range(3))
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_guard_that_is_killed_at_a_step_leaves_the_rest_to_the_operator(step: int, when: str) -> None:
    class Killed(BaseException):
        pass

    with world() as w:
        guard, api = w.guard()
        w.run(guard, LEARNS_S, calm=True)

        def kill(verb: str, kind: str) -> None:
            sent = len(api.writes) - (when == "after")
            if verb in ("patch", "delete") and sent == step:
                raise Killed

        setattr(api, when, kill)
        freeze(w)
        with suppress(Killed):
            w.run(guard, 40.0)
        assert len(api.writes) == step + (when == "after")
        w.ended()
        another, later = w.guard(name="walproof-guard-b")
        w.run(another, 30.0, calm=True)
        assert later.writes == [], "the ten minutes hold for it too" if api.writes else later.writes
        deleted = any(verb == "delete" for verb, _, _ in api.writes)
        assert (w.cnpg.state.primary != "pg-1") is deleted, "once its pod is deleted the operator goes on by itself"


@pytest.mark.parametrize("step", range(3))
@pytest.mark.parametrize("where", ["_read", "_sight", "_send"])
def test_a_guard_that_stands_still_before_a_step_sends_nothing_late(step: int, where: str) -> None:
    with world() as w:
        guard, api = w.guard()
        w.run(guard, LEARNS_S, calm=True)
        shipped, stood = getattr(guard, where), list[float]()
        before = (State.SUSPECTING, State.CLAIMED, State.DELETED)[step]

        def stands_still(*given: Any) -> Any:
            answer = shipped(*given) if where != "_send" else None
            if guard.memory.state is before and not stood and (where != "_send" or len(api.writes) == step):
                stood.append(w.clock.now_s)
                w.clock.now_s += 5.0
            return answer if where != "_send" else shipped(*given)

        setattr(guard, where, stands_still)
        freeze(w)
        for _ in range(300):
            guard.turn()
            if stood:
                break
        assert stood, "the step was reached"
        assert [one[:2] for one in api.writes] == list(STEPS[:step]), "it was sent after its time"


@each(range(3))
def test_an_answer_that_is_lost_is_not_taken_for_done(step: int) -> None:
    with world() as w:
        guard, api = w.guard()
        w.run(guard, LEARNS_S, calm=True)

        def lost(verb: str, kind: str) -> None:
            if len(api.writes) == step + 1 and kind == STEPS[step][1].partition("/")[0]:
                unanswered(verb, kind)

        api.after = lost
        freeze(w)
        w.run(guard, 40.0)
        # An announcement alone is made once more after some seconds; once the pod is deleted the operator goes on.
        assert [write[:2] for write in api.writes] == [[STEPS[0], *STEPS], [*STEPS[:2]], [*STEPS]][step]
        assert w.cnpg.state.primary != "pg-1" and any("did not answer" in line for line in w.lines)


@each([(0, 403), (0, 500), (1, 403), (1, 422), (2, 409), (2, 403)])
def test_what_is_refused_is_not_done_and_the_rest_is_the_operators(step: int, code: int) -> None:
    with world() as w:
        guard, api = w.guard()
        w.run(guard, LEARNS_S, calm=True)

        def refuses(verb: str, kind: str) -> None:
            if (verb, kind) == (STEPS[step][0], STEPS[step][1].partition("/")[0]):
                if code == 422:  # an admission policy
                    raise UsageError("no", "")
                raise ApiError("a webhook does not answer" if code == 500 else "no", code=code)

        api.before = refuses
        freeze(w)
        w.run(guard, 30.0)
        assert list(dict.fromkeys(write[:2] for write in api.writes)) == list(STEPS[:step])
        assert guard.status().takeovers == (1 if step == 2 else 0)
        assert any("webhook" in line or "no;" in line for line in w.lines), "the API's own words are logged"


@each([(0, "Cluster", 3), (1, "Pod", 3), (2, "Lease", 2)])
def test_what_another_changed_meanwhile_is_not_written_over(step: int, kind: str, writes: int) -> None:
    with world() as w:
        guard, api = w.guard()
        w.run(guard, LEARNS_S, calm=True)
        name, changed = STEPS[step][1].partition("/")[2], list[str]()

        def changes(verb: str, asked: str) -> None:
            if (verb, asked) == (STEPS[step][0], STEPS[step][1].partition("/")[0]) and not changed:
                changed.append(name)
                w.cnpg.store.modify(kind, name, lambda one: one["metadata"].setdefault("labels", {}).update(other="1"))

        api.before = changes
        freeze(w)
        w.run(guard, 30.0)
        assert changed, "the step was reached"
        # A pod is the same one as long as its uid is.
        assert [write[:2] for write in api.writes] == list(STEPS[:writes])


ASIDE: dict[str, Callable[[World], Any]] = {
    "by its labels": lambda w: w.cnpg.store.modify("Pod", "pg-1", lambda o: o["metadata"]["labels"].clear()),
    "its role": lambda w: w.cnpg.store.modify("Pod", "pg-1", lambda o: o["metadata"]["labels"].pop("cnpg.io/podRole")),
    "by its owner": lambda w: w.cnpg.store.modify("Pod", "pg-1", lambda o: o["metadata"].update(ownerReferences=[])),
    "by the Cluster": lambda w: w.cnpg.store.modify(
        "Cluster", "pg", lambda one: one["status"].update(instanceNames=["pg-2", "pg-3"])
    ),
}


@each(ASIDE.values())
def test_a_pod_that_was_set_aside_is_not_gone(aside: Callable[[World], Any]) -> None:
    with world() as w:
        guard, api = w.guard()
        w.run(guard, LEARNS_S, calm=True)
        freeze(w)
        while guard.memory.state is not State.DELETED and w.clock.now_s < 1030.0:
            guard.turn()
        w.cnpg.lose_node()  # its kubelet hangs: the object stays, the manager lives
        assert guard.memory.state is State.DELETED
        aside(w)
        w.run(guard, 25.0)
        assert w.cnpg.store.find("Pod", "pg-1") and len(api.writes) == 2
        assert any("no more was seen within 20 s" in line for line in w.lines)
        assert not any("gone" in line for line in w.lines)


@each([SERVICE, "pg-1", MANAGER])
def test_a_guard_that_could_not_act_does_not_say_ready(place: str) -> None:
    with world() as w:
        guard, _ = w.guard()
        w.run(guard, LEARNS_S, calm=True)
        w.refusing.add(place)
        w.run(guard, 11.0, calm=True)
        assert not guard.status().ready and "did not answer" in guard.status().why_not
        w.refusing.clear()
        w.run(guard, 6.0, calm=True)
        assert guard.status().ready


def test_without_the_api_it_does_not_say_ready_and_says_what_the_api_said() -> None:
    with world() as w:
        guard, api = w.guard()
        w.run(guard, LEARNS_S, calm=True)
        api.before = lambda verb, kind: unanswered("patch", kind)
        w.run(guard, 4.0, calm=True)
        assert not guard.status().ready and "did not answer in time" in guard.status().why_not
        w.run(guard, 8.0, calm=True)
        w.asked.clear()
        w.run(guard, 2.0, calm=True)
        assert w.asked == [], "an address may be another's by now"


def test_an_instance_that_the_role_does_not_name_is_noticed() -> None:
    with world() as w:
        guard, _ = w.guard()
        w.run(guard, LEARNS_S, calm=True)
        w.account.without = (Rule(("get",), ("pods",)),)
        assert guard.status().ready
        w.run(guard, 4.0, calm=True)
        assert not guard.status().ready and "may not get pods" in guard.status().why_not


def test_a_stall_that_ends_after_the_announcement_costs_seconds_not_ten_minutes() -> None:
    with world() as w:
        guard, api = w.guard()
        w.run(guard, LEARNS_S, calm=True)
        api.after = lambda verb, _: w.cnpg._happens(w.cnpg.machine.thaw, "pg-1") if verb == "patch" else None
        freeze(w)
        w.run(guard, 6.0)
        assert [write[:2] for write in api.writes] == [STEPS[0]] and "one in 5 s" in guard.status().why_not
        w.run(guard, 10.0, calm=True)
        assert guard.status().ready
        api.after = lambda verb, kind: None
        freeze(w)
        w.run(guard, 20.0)
        assert [write[:2] for write in api.writes] == [STEPS[0], *STEPS]


def test_a_guard_that_did_not_run_takes_no_silence_from_before() -> None:
    with world() as w:
        guard, api = w.guard()
        w.run(guard, LEARNS_S, calm=True)
        freeze(w)
        w.run(guard, 0.5)
        w.clock.now_s += 6.0
        w.run(guard, 2.0)
        assert guard.status().suspicions == 0 and api.writes == []


@each([(0, 2.0), (-5, 2.0), (1, 2.0), (8, 8.0)])
def test_how_often_the_lease_is_renewed_is_never_taken_for_shorter_than_two_seconds(seconds: int, given: float) -> None:
    with world() as w:
        changed(w, primaryLease={"retryPeriodSeconds": seconds})
        assert w.guard()[0]._sight(False).lease.retry_s == given


@each([(0.0, 0.2), (0.4, 0.2), (0.7, 0.0), (0.7, 3.0), (0, -0.1), (0.4, -3600.0), (0, -1e9)])
def test_what_a_standby_heard_counts_from_its_answer_not_from_the_question(took_s: float, silent_s: float) -> None:
    """An answer that comes late makes no silence longer than it is, nor does a clock that is put back end it."""
    with world() as w:
        guard, _ = w.guard()
        w.run(guard, 1.0)
        asker, at = guard._askers["pg-2"], w.clock.now_s
        asker.answer = (at - took_s, asker.answer[1].model_copy(update={"silent_s": silent_s}))
        asker.way = Way(at)
        seen = guard._sight(False).standbys["pg-2"]
        assert seen.at == at - took_s and seen.heard_at == pytest.approx(at - max(silent_s, 0.0))


def test_readings_count_from_before_they_were_asked_for() -> None:
    with world() as w:
        guard, api = w.guard()
        began, api.takes_s = w.clock.now_s, 0.3
        guard._read()
        assert guard._read_at == began < w.clock.now_s


def test_a_dry_run_sends_nothing_and_says_what_it_suspects() -> None:
    with world() as w:
        guard, api = w.guard(dry_run=True)
        w.run(guard, LEARNS_S, calm=True)
        freeze(w)
        w.run(guard, 10.0)
        assert api.writes == [] and guard.status().suspicions == 1
        assert any(line.startswith("pg-1: suspecting: no SQL") for line in w.lines)
