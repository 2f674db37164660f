"""The forecast beside a simulator written from its page alone, and what must hold whatever the numbers are."""

import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fixtures.forecast_comparison import Comparison, by_program, compare, deviation, drawn, line
from tests.fixtures.independent_forecast import Cluster, Kind
from tests.fixtures.tiers import each

ZONES = "z1,z2,z3"
TWO_ZONES = "z1,z1,z2"
REGIONS = "r1/z1,r1/z2,r2/z3"
FIVE = "z1,z1,z2,z2,z3"
ONE_HOST = "r1/z1/k1/s1,r1/z1/k1/s1,r2/z2/k2/s2"

CRASH = Kind("member", 40.0, "kept", 5_000.0, dcs=False, silent=False)
SERVER = Kind("server", 20.0, "unflushed", 20_000.0, 1.0)
LONG = 60_000.0
VOTERS = "r3/z4,r3/z5"
DISK = Kind("member", 20.0, "lost", 20_000.0, 1.5, dcs=False)
ZONE = Kind("zone", 10.0, "kept", 20_000.0)
POWER = Kind("zone", 10.0, "unflushed", 20_000.0, 1.0)
NETWORK = Kind("zone", 10.0, "kept", 10_000.0, 2.0, cut=True)
REGION = Kind("region", 6.0, "kept", 20_000.0, 1.0)
BURNT = Kind("zone", 10.0, "lost", 20_000.0)

CONFIGURATIONS = {
    "three zones, ANY 1": Cluster(ZONES, (ZONE, DISK)),
    "three zones, ANY 2": Cluster(ZONES, (ZONE, DISK), k=2, force_s=LONG),
    "three zones, ANY 1 degrading": Cluster(ZONES, (ZONE, DISK), strict=False, takeover_s=30.0, force_s=LONG),
    "three zones, ANY 2 degrading": Cluster(ZONES, (ZONE, BURNT), k=2, strict=False, takeover_s=3_000.0,
     decide_s=1_800.0),
    "two zones, strict": Cluster(TWO_ZONES, (ZONE, CRASH), takeover_s=30.0),
    "two zones, degrading": Cluster(TWO_ZONES, (ZONE, POWER), strict=False, takeover_s=300.0, force_s=LONG),
    "two zones written the other way": Cluster("z2,z1,z1", (ZONE, POWER), strict=False, takeover_s=300.0,
     force_s=60_000.0),
    "two zones, local": Cluster(TWO_ZONES, (ZONE, DISK), "local", takeover_s=30.0),
    "two regions, people force": Cluster(REGIONS, (REGION, DISK), takeover_s=30.0, decide_s=1_800.0, force_s=14_400.0),
    "two regions, ANY 2": Cluster(REGIONS, (REGION, SERVER), k=2, force_s=14_400.0),
    "two regions, witnesses": Cluster(REGIONS, (REGION, ZONE), witnesses=VOTERS, takeover_s=300.0, force_s=14_400.0),
    "two regions, FIRST 1": Cluster(REGIONS, (REGION, BURNT), quorum="FIRST", witnesses=VOTERS, force_s=14_400.0),
    "five members, ANY 2": Cluster(FIVE, (ZONE, DISK), k=2, takeover_s=30.0, force_s=LONG),
    "five members, FIRST 2 degrading": Cluster(FIVE, (ZONE, CRASH), quorum="FIRST", k=2, strict=False,
     takeover_s=300.0),
    "five members, ANY 3": Cluster(FIVE, (POWER, CRASH), k=3, takeover_s=30.0, force_s=LONG),
    "one host, FIRST 1": Cluster(ONE_HOST, (SERVER, CRASH), quorum="FIRST", takeover_s=30.0, force_s=LONG),
    "one host, off": Cluster(ONE_HOST, (SERVER, CRASH), "off", takeover_s=300.0),
    "three zones, off": Cluster(ZONES, (POWER, DISK), "off", takeover_s=3_000.0),
    "two zones, remote_write": Cluster(TWO_ZONES, (POWER, DISK), "remote_write", takeover_s=30.0, force_s=LONG),
    "one zone, remote_write": Cluster("z1,z1,z1", (POWER, DISK), "remote_write", takeover_s=300.0, decide_s=1_800.0),
    "partitions, ANY 1": Cluster(ZONES, (NETWORK, CRASH), takeover_s=3_000.0),
    "partitions of the larger side": Cluster(TWO_ZONES, (NETWORK, DISK), strict=False, takeover_s=300.0,
     force_s=60_000.0),
    "partitions, local": Cluster(FIVE, (NETWORK, SERVER), "local", takeover_s=300.0),
    "two members": Cluster("z1,z2", (ZONE, DISK), strict=False, decide_s=1_800.0, force_s=60_000.0),
}  # fmt: skip


def differing(compared: list[Comparison]) -> list[str]:
    """Figures more than four standard errors apart."""
    return [line(one) for one in compared if abs(one.deviation) > 4]


STEADY = Kind("member", 20.0, "lost", 10_000.0, 0.0)
VOTING = Kind("member", 40.0, "lost", 5_000.0, 0.0, dcs=False)
CONFIGURATIONS["a leader cut off has not crashed"] = Cluster(
    "z1,z2", (Kind("zone", 20.0, "kept", 10_000.0, 0.0, cut=True),), "off"
)
CONFIGURATIONS["a survivor that leads when a majority is back took over"] = Cluster("z1,z2", (STEADY,), strict=False)
CONFIGURATIONS["an old leader whose power is cut as well had flushed what it acknowledged"] = Cluster(
    "z1,z2",
    (replace(STEADY, per_year=40.0, data="kept", repair_s=60_000.0), replace(VOTING, per_year=120.0, data="unflushed")),
    "remote_write",
    strict=False,
    witnesses="z3,z4",
)
CONFIGURATIONS["and so it did at local"] = Cluster("z1,z2", (STEADY,), "local")
CONFIGURATIONS["no standby has more because a takeover began"] = Cluster(
    ZONES, (replace(STEADY, per_year=150.0),), quorum="FIRST", strict=False, takeover_s=6_000.0
)
CONFIGURATIONS["without service, who led last still has every commit"] = Cluster(
    "z1,z2", (replace(VOTING, data="kept", repair_s=20_000.0), VOTING), witnesses="z3,z4"
)


@each(CONFIGURATIONS, push=8)
def test_the_program_agrees_with_a_simulator_written_from_the_page(name: str) -> None:
    assert not differing(compare(CONFIGURATIONS[name], 25, 1))


@settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 10_000))
def test_so_it_does_on_random_configurations(number: int) -> None:
    assert not differing(compare(drawn(random.Random(number)), 15, number))


@settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 10_000), st.permutations(range(5)))
def test_nor_does_the_order_of_members_matter_there(number: int, order: list[int]) -> None:
    """Of FIRST k it does: the standby that is named first is waited for."""
    cluster = replace(drawn(random.Random(number)), quorum="ANY")
    places = cluster.layout.split(",")
    other = replace(cluster, layout=",".join(places[i] for i in order if i < len(places)))
    found = [by_program(one, 150, seed) for seed, one in enumerate((cluster, other))]
    for name in found[0]:
        assert abs(deviation(name, (found[0][name], 150), (found[1][name], 150))) < 4, (name, cluster, other)


def program(cluster: Cluster, years: int = 300) -> tuple[float, float, float]:
    """Minutes a year, losses by structure a year, and the minutes' standard error."""
    figures = by_program(cluster, years, 7)
    return figures["minutes"].mean, figures["near"].mean + figures["stale"].mean, figures["minutes"].error


BASE = Cluster(ZONES, (ZONE, DISK), takeover_s=30.0, force_s=60_000.0)
NEVER_BETTER = {
    "slower repair": (BASE, replace(BASE, kinds=(replace(ZONE, repair_s=60_000.0), DISK))),
    "higher rates": (BASE, replace(BASE, kinds=(replace(ZONE, per_year=30.0), DISK))),
    "one kind more": (BASE, replace(BASE, kinds=(ZONE, DISK, REGION))),
    "a longer takeover": (BASE, replace(BASE, takeover_s=3_000.0)),
    "strict after degrading": (replace(BASE, strict=False), BASE),
    "ANY 2 after ANY 1": (BASE, replace(BASE, k=2)),
    "FIRST 2 after FIRST 1": (replace(BASE, quorum="FIRST"), replace(BASE, quorum="FIRST", k=2)),
    "one member less": (replace(BASE, layout="z1,z2,z3,z4,z5"), BASE),
    "people who wait longer": (replace(BASE, decide_s=0.0), replace(BASE, decide_s=20_000.0)),
}


@each(NEVER_BETTER, push=5)
def test_minutes_never_fall_with(name: str) -> None:
    better, worse = (program(cluster) for cluster in NEVER_BETTER[name])
    assert worse[0] > better[0] - 4 * (better[2] + worse[2])


@each(["ANY", "FIRST"])
def test_a_commit_that_waits_for_more_is_lost_less_often(quorum: str) -> None:
    base = replace(BASE, quorum=quorum, kinds=(BURNT, DISK), strict=False)
    local, one, two = (program(cluster)[1] for cluster in (replace(base, level="local"), base, replace(base, k=2)))
    assert two <= 1.1 * one
    assert one <= 1.1 * (local + program(replace(base, level="local"))[1]) + by_takeover(base)


def by_takeover(cluster: Cluster) -> float:
    """Takeovers a year at local, each of which may lose."""
    return by_program(replace(cluster, level="local"), 300, 7)["takeover"].mean


def test_strict_promotes_members_without_every_commit_less_often_than_degrading() -> None:
    base = replace(BASE, kinds=(BURNT, DISK))
    assert program(base)[1] <= 1.1 * program(replace(base, strict=False))[1]


@pytest.mark.parametrize("quorum", ["ANY", "local"])
@pytest.mark.parametrize("layout", ["z1,z2,z1", "z2,z1,z1"])
def test_the_order_in_which_members_are_written_does_not_matter(quorum: str, layout: str) -> None:
    base = replace(BASE, layout=TWO_ZONES, strict=False)
    base = replace(base, level="local") if quorum == "local" else base
    one, other = program(base), program(replace(base, layout=layout))
    assert abs(one[0] - other[0]) < 4 * (one[2] + other[2])


@each(["off", "local", "remote_write", "on"])
def test_what_never_fails_costs_nothing(level: str) -> None:
    figures = by_program(replace(BASE, level=level, kinds=(replace(ZONE, per_year=0.0),)), 100, 1)
    assert all(one.mean == 0 for one in figures.values())
