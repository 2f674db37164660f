"""The stand-in's rolling change of pods: as CloudNativePG's documentation has it, one by one and the primary last."""

from dataclasses import replace

import pytest

from tests.fixtures.kubernetes.cluster_rules import webhook_causes
from tests.fixtures.kubernetes.operator.delays import Delays
from tests.fixtures.kubernetes.operator.machine import Changed, advance
from tests.fixtures.kubernetes.operator.rollout import FOR_A_PERSON, change_template
from tests.fixtures.kubernetes.operator.state import HEALTHY, Cluster, Member, Template, healthy
from tests.fixtures.kubernetes.stand_in import manifest

DELAYS = Delays()
RESTED = healthy(tuple(Member(name, f"{name}/1") for name in ("pg-1", "pg-2", "pg-3")))


def rolled(template: Template, seconds: float = 120.0) -> tuple[Cluster, tuple[Changed, ...]]:
    return advance(change_template(RESTED, template, DELAYS), seconds, DELAYS)


def replaced(changes: tuple[Changed, ...]) -> list[str]:
    return [one.subject for one in changes if one.field == "exists" and one.after == "False"]


def test_replicas_go_first_from_the_highest_serial_on_and_the_primary_restarts_last() -> None:
    after, changes = rolled(Template("2"))
    assert replaced(changes) == ["pod pg-3", "pod pg-2", "pod pg-1"]
    assert (after.primary, after.timeline, after.phase) == ("pg-1", 1, HEALTHY)
    assert {one.template for one in after.members} == {"2"} and all(one.ready for one in after.members)
    assert [one.ip for one in after.members] == ["pg-1/2", "pg-2/2", "pg-3/2"]


def test_never_two_are_missing_and_it_does_not_say_healthy_meanwhile() -> None:
    _, changes = rolled(Template("2"))
    ready = [int(one.after) for one in changes if one.field == "readyInstances"]
    assert set(ready) == {2, 3}
    phases = [one.after for one in changes if one.field == "phase"]
    assert phases[-1] == HEALTHY and HEALTHY not in phases[:-1]


def test_by_switchover_another_leads_and_the_former_primary_is_replaced_then() -> None:
    after, changes = rolled(Template("2", by_switchover=True))
    assert replaced(changes) == ["pod pg-3", "pod pg-2", "pod pg-1"]
    assert after.primary != "pg-1" and after.timeline == 2 and after.phase == HEALTHY
    assert {one.template for one in after.members} == {"2"}


def test_supervised_it_waits_for_a_person_before_the_primary() -> None:
    after, changes = rolled(Template("2", supervised=True))
    assert replaced(changes) == ["pod pg-3", "pod pg-2"]
    assert (after.phase, after.member("pg-1").template) == (FOR_A_PERSON, "")


def test_a_pod_that_no_node_takes_stops_it_and_stays_although_the_resources_are_reverted() -> None:
    after, changes = rolled(Template("99", placed=False))
    assert replaced(changes) == ["pod pg-3"] and after.member("pg-3").pod == "Pending"
    after, _ = advance(change_template(after, Template(), DELAYS), after.now_s + 60, DELAYS)
    assert after.member("pg-3").pod == "Pending" and after.member("pg-1").ready


def test_a_change_back_while_it_rolls_replaces_those_that_were_changed_only() -> None:
    half, changes = rolled(Template("2"), 8.0)
    assert replaced(changes) == ["pod pg-3"]
    after, changes = advance(change_template(half, replace(half.template, resources=""), DELAYS), 120, DELAYS)
    assert replaced(changes) == ["pod pg-3"] and after.phase == HEALTHY


@pytest.mark.parametrize(
    ("resources", "why"),
    [
        ({"requests": {"cpu": "2"}, "limits": {"cpu": "500m"}}, "CPU request is greater than the limit"),
        ({"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}}, "Memory request is greater than the limit"),
        ({"requests": {"memory": "64Mi"}}, "Memory request is lower than PostgreSQL `shared_buffers` value"),
    ],
)
def test_admission_refuses_resources_that_contradict_each_other(resources: dict[str, object], why: str) -> None:
    item = manifest(resources=resources, postgresql={"parameters": {"shared_buffers": "128MB"}})
    assert [cause.message for cause in webhook_causes(item, None) if why in cause.message]
