"""What Patroni's timeouts bring: told from drills, by the timeouts that were in effect, or not told."""

from collections.abc import Sequence
from dataclasses import replace

from tests.fixtures.priced_records import advice, drill, price_record
from tests.fixtures.tiers import each
from walproof.model.advice import Requirements
from walproof.model.event import Described, DrillDone, Event, Started
from walproof.model.guarantee import Level
from walproof.model.topology import Description

FAST = {"patroni": "4.1.5", "timeouts": "fast"}


def drilled(facts: dict[str, str], *drills: DrillDone, ttl_s: float | None = None) -> list[Event]:
    described = Described(0.0, Description("lab", ("n1", "n2", "n3"), facts, ttl_s=ttl_s))
    return [Started(0.0, "prove", {}, "", 1, "0"), described, *drills]


def frozen(*rtos: float) -> list[DrillDone]:
    return [drill(Level.ON, fault="freeze", rto_s=rto) for rto in rtos]


def failovers(rto_s: float | None, *records: list[Event]) -> Sequence[str]:
    return advice(Requirements(rpo_s=0.0, rto_s=rto_s), price_record(), *records).choices[0].failovers


def test_the_median_of_each_fault_stands_with_the_timeouts_it_was_drilled_with() -> None:
    default = {"patroni": "4.1.5", "patroni loop_wait": "10", "patroni retry_timeout": "10"}
    lines = failovers(
        None, drilled(FAST, *frozen(22.0, 22.4, 25.0)), drilled(default, *frozen(33.0), drill(Level.ON), ttl_s=30.0)
    )
    assert lines == (
        "with ttl 20 s, loop_wait 1 s, retry_timeout 3 s: writes back 22.4 s after freeze (median of 3 drills)",
        "with ttl 30 s, loop_wait 10 s, retry_timeout 10 s: writes back 33.0 s after freeze (median of 1 drill), "
        "3.2 s after kill (median of 1 drill)",
    )


def test_timeouts_that_an_rto_asks_for_have_their_price_and_the_command_that_measures_them() -> None:
    price, never = failovers(27.0, drilled({"patroni": "4.1.5", "timeouts": "default"}))
    assert "silent for more than" in price and "although it would have come back" in price
    assert never.startswith("never drilled with ttl ") and "walproof apply, then walproof prove" in never
    assert "--fault kill,freeze" in never


def test_what_was_drilled_with_the_timeouts_of_the_choice_needs_no_other_drill() -> None:
    lines = failovers(23.0, drilled(FAST, *frozen(22.4)))
    assert lines[0].startswith("with ttl 20 s") and len(lines) == 2
    assert not any("never drilled" in line for line in lines)


# unknown timeouts, a simulated cluster, a planned switchover, a former guard's drill
SILENT: list[list[Event]] = [
    drilled({"patroni": "4.1.5"}, *frozen(22.4)),
    drilled({**FAST, "kind": "simulated, not a measurement"}, *frozen(22.4)),
    drilled(FAST, drill(Level.ON, fault="switchover", rto_s=0.4)),
    drilled(FAST, *(replace(done, drill=replace(done.drill, guarded=True)) for done in frozen(2.9))),
]


@each(SILENT)
def test_what_says_nothing_of_timeouts_is_not_counted(record: list[Event]) -> None:
    (line,) = failovers(None, record)
    assert line.startswith("no drill of the leader says") and "walproof prove" in line


@each(["²", "9" * 400, "-1", "soon"])
def test_timeouts_in_a_strangers_record_that_are_no_numbers_leave_the_ttl(odd: str) -> None:
    there = Description("c", ("n1",), {"patroni loop_wait": odd, "patroni retry_timeout": "3"}, ttl_s=20.0)
    assert there.failover_times_s == (20.0,)
