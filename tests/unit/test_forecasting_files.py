"""What a forecast is made of: hostile files of rates, impossible topologies, drills that say less than they seem to."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.fixtures.forecasts import drill, failure, failures, lost, record, rng
from tests.fixtures.records import recorded
from tests.fixtures.tiers import each
from walproof.cli.main import walproof
from walproof.errors import UsageError
from walproof.forecasting.failure_rates import DEFAULT, failures_of, lognormal
from walproof.forecasting.forecast import forecast
from walproof.forecasting.outages_from_drills import Model, Timeouts, assumed_takeover, measured, takeovers
from walproof.forecasting.topology import Configuration, causes, check, topology
from walproof.model.drill import Findings, Verdict, Victim
from walproof.model.event import Described, DrillDone, Event
from walproof.model.guarantee import Level, QuorumKind
from walproof.model.topology import Description
from walproof.reporting.wording import number

RECORDS = Path("tests/replay/records")
ANY_1 = Configuration(Level.ON, QuorumKind.ANY, 1)
GOOD = DEFAULT.read_text("utf-8")


def test_every_shipped_rate_has_a_range_and_a_source() -> None:
    shipped = failures_of()
    assert {k.place for k in shipped.kinds} == {"member", "server", "rack", "zone", "region", "cluster"}
    assert all(k.source and 0 < k.low <= k.per_year <= k.high for k in shipped.kinds)
    assert all(k.address.startswith("http") for k in shipped.kinds if not k.source.startswith("assumption"))


def test_half_of_a_rack_networks_repairs_take_less_than_six_minutes() -> None:
    (network,) = (kind for kind in failures_of().kinds if kind.name == "rack network")
    median, _ = lognormal(network.repair_s, network.repair_cv)
    assert math.exp(median) == pytest.approx(360.0, rel=0.01)


@each([
    ("per_year = 0.25", "per_year = -1", "greater than or equal to 0"),
    ("per_year = 0.25", "per_year = nan", "finite number"),
    ("per_year = 0.25", "per_year = inf", "finite number"),
    ("per_year = 0.25", "per_year = 1e300", "less than or equal to"),
    ("per_year = 0.25", "per_year = 0.9", "not between low 0.05 and high 0.5"),
    ("per_year = 0.25", 'per_year = 0.25\nper_yaer = "x"', "extra inputs"),
    ("repair_s = 30.0", "repair_s = 0", "greater than 0"),
    ("repair_s = 30.0", "repair_s = 1e99", "less than or equal to"),
    ('source = "widely used software', '# "widely used software', "field required"),
    ('name = "os crash"', 'name = "postgres crash"', "twice"),
    ("[people]", "[people", "not TOML"),
    ("decide_s = 1800.0", "decide_s = -3", "greater than or equal to 0"),
    ('per = "server"', 'per = "planet"', "failure.'os crash'.per: input should be"),
])  # fmt: skip
def test_a_hostile_file_gets_one_sentence(
    old: str, new: str, stated: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert old in GOOD
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(GOOD.replace(old, new, 1))
    with pytest.raises(UsageError) as wrong:
        failures_of(Path("mine.toml"))
    assert wrong.value.message.startswith("mine.toml")
    assert stated.lower() in wrong.value.message.lower()
    assert "\n" not in wrong.value.message
    assert wrong.value.exit_code == 2


# rows: binary, empty, no failures, a number, twice
@each([
    (b"\xff\xfe\x00", "not TOML: 'utf-8'"),
    (b"", "people: field required"),
    (GOOD.split("[[failure]]")[0].encode(), "failure: field required"),
    (b"failure = 3\n" + GOOD.split("[[failure]]")[0].encode(), "tuple"),
    (GOOD.encode() * 2, "not TOML"),
])  # fmt: skip
def test_a_file_that_is_no_file_of_rates_gets_one_sentence(content: bytes, stated: str, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_bytes(content)
    with pytest.raises(UsageError, match=stated) as wrong:
        failures_of(tmp_path / "mine.toml")
    assert "\n" not in wrong.value.message
    with pytest.raises(UsageError, match="cannot be read"):
        failures_of(tmp_path)


def test_more_witnesses_than_a_dcs_has_are_refused() -> None:
    with pytest.raises(UsageError, match="at most 4 witnesses, not 5"):
        topology("z1,z2", "z3,z4,z5,z6,z7")
    with pytest.raises(UsageError, match="is not a place"):
        topology("z1,z2", "z3/")


@each(["z1", "z1,,z2", "a/b/c/d/e,z2", "z1,z2,z3,z4,z5,z6,z7,z8", "z1,z2/", ""])
def test_an_impossible_layout_is_refused(layout: str) -> None:
    with pytest.raises(UsageError):
        topology(layout)


def test_a_quorum_of_more_standbys_than_there_are_is_refused() -> None:
    with pytest.raises(UsageError, match="there are 2 standbys"):
        check(topology("z1,z2,z3"), Configuration(Level.ON, QuorumKind.ANY, 3))


def test_what_shares_a_place_fails_together_and_the_majority_survives_a_partition() -> None:
    found = {c.name: c for c in causes(topology("r1/z1,r1/z1,r1/z2"), failures_of())}
    assert found["zone power at r1/z1"].members == 0b011
    assert found["zone network at r1/z1"].members == 0b100  # z1 has the majority: it is z2 that is cut off
    assert found["region outage at r1"].members == 0b111


def test_an_undecided_drill_neither_holds_nor_loses() -> None:
    kinds = failures(failure("crash", 1.0))
    known = measured([record(drill(), drill(verdict=Verdict.UNDECIDED, rto_s=900.0))], kinds)
    assert known.loss("crash", Level.ON).drills == 1
    assert known.takeovers["crash"].outages_s == (3.0,)
    assert any("1 undecided drill left out" in caveat for caveat in known.caveats)


def test_a_leader_restarted_in_place_says_nothing_about_a_takeover() -> None:
    known = measured([record(drill(loss="postgres crash"))], failures(failure("crash", 1.0)))
    assert known.loss("crash", Level.ON).drills == 0


def test_a_simulated_record_is_named_as_such() -> None:
    known = measured([record(drill(), simulated=True)], failures(failure("crash", 1.0)))
    assert "a-record is of a simulated cluster: a model, not a measurement" in known.caveats


def test_ten_drills_without_loss_are_not_zero_and_a_fault_never_drilled_is_an_upper_bound() -> None:
    kinds = failures(failure("crash", 1.0))
    drilled = measured([record(*[drill()] * 10)], kinds)
    made = forecast(Model(topology("z1,z2,z3"), ANY_1, kinds, drilled), "z1,z2,z3", years=2000, seed=1)
    assert made.structural.high < 1e-3 < made.losses.value < 0.259
    assert made.losses.high > 0.1
    nothing = measured([record(drill(Level.OFF))], kinds)
    never = forecast(Model(topology("z1,z2,z3"), ANY_1, kinds, nothing), "z1,z2,z3", years=2000, seed=1)
    assert never.upper_bound
    assert never.losses.value == pytest.approx(1.0, rel=0.05)
    assert any("upper bound" in caveat for caveat in never.caveats)


def test_what_local_lost_is_expected_again() -> None:
    kinds = failures(failure("crash", 2.0))
    known = measured([record(*[lost(40)] * 20, *[drill(Level.LOCAL)] * 20)], kinds)
    made = forecast(Model(topology("z1,z2,z3"), Configuration(Level.LOCAL), kinds, known), "", years=2000, seed=1)
    assert made.losses.low < 1.0 < made.losses.high
    assert made.commits == pytest.approx(40.0, rel=0.1)


def test_a_loss_that_a_level_never_had_is_as_large_as_the_same_fault_had_at_another() -> None:
    kinds = failures(failure("crash", 2.0), failure("cut", 1e-6, drills="isolate"))
    drills = [lost(10)] * 10 + [replace(lost(5000), fault="isolate")] * 10 + [drill()] * 10
    known = measured([record(*drills)], kinds)
    commits = {
        what: forecast(Model(topology("z1,z2,z3"), what, kinds, known), "", years=2000, seed=1).commits
        for what in (ANY_1, Configuration(Level.LOCAL))
    }
    assert 0 < commits[ANY_1] < commits[Configuration(Level.LOCAL)] < 100


def test_a_wait_is_measured_where_all_standbys_were_gone_or_the_one_that_was_waited_for() -> None:
    """A synchronous standby's loss that another made up for is no wait; without any the level is not in effect."""
    kinds = failures(failure("crash", 1.0))
    alone = Findings(acknowledged=1000, downgraded=50, not_in_effect_s=2.0)
    drills = [
        drill(verdict=Verdict.UNDECIDED, victim=Victim.ALL_STANDBYS, rto_s=1.5, unavailable_s=1.5, findings=alone),
        drill(verdict=Verdict.UNDECIDED, victim=Victim.ALL_STANDBYS, unavailable_s=7.0),
        drill(victim=Victim.SYNC_STANDBY, unavailable_s=0.0),
        drill(victim=Victim.SYNC_STANDBY, unavailable_s=4.0),
    ]
    assert measured([record(*drills)], kinds).takeovers["crash"].stalls_s == (1.5, 4.0)


def test_an_outage_ends_when_service_lasts_and_one_without_an_end_has_no_length() -> None:
    kinds = failures(failure("crash", 1.0))
    times = [(106.0, 105.6), (3.0, 5.0), (None, 97.6), (0.3, 0.0)]
    known = measured([record(*(drill(rto_s=rto, unavailable_s=gaps) for rto, gaps in times))], kinds)
    assert known.takeovers["crash"].outages_s == (106.0, 5.0, 0.0)
    assert known.caveats[-1].endswith("1 drill whose outage has no end is left out of the outages")


def test_what_was_never_drilled_under_cloudnative_pg_is_not_assumed_from_patronis_timeouts() -> None:
    kinds = failures(failure("crash", 1.0), failure("cut", 1.0, drills="isolate"))
    described = Described(0.0, Description("cnpg:db/pg", ("pg-1", "pg-2", "pg-3"), {"manager": "cloudnative-pg"}))
    known = measured([("proof", [described, DrillDone(1.0, drill())])], kinds)
    here = Model(topology("z1,z2,z3"), ANY_1, kinds, known)
    assert assumed_takeover(here, kinds.kinds[1]) == (25.0, 121.0)
    made = forecast(here, "", years=100, seed=1)
    assert any("another CloudNativePG cluster, never drilled: cut" in caveat for caveat in made.caveats)
    both = measured([("proof", [described, DrillDone(1.0, drill())]), record(drill())], kinds)
    assert assumed_takeover(replace(here, measured=both), kinds.kinds[1])[1] == 42.0


def _run(*words: str) -> tuple[int, str, Exception | None]:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(walproof, ["forecast", *words], standalone_mode=False)
    wrong = result.exception if isinstance(result.exception, Exception) else None
    return result.exit_code, result.output, wrong


@pytest.mark.usefixtures("quick_forecasts")
# rows: one-node, two-nodes, put-apart, apart
@each([
    ("aaa", (), "r1/z1/k1/a,r1/z1/k1/a,r1/z1/k1/a", "members share a node and fail with it (pg-1 on a, pg-2 on a"),
    ("aab", (), "r1/z1/k1/a,r1/z1/k1/a,r1/z2/k2/b", "members share a node and fail with it"),
    ("aaa", ("--layout", "z1,z2,z3"), "z1,z2,z3", "the layout keeps apart what shared a node when it was drilled"),
    ("abc", (), "r1/z1/k1/a,r1/z2/k2/b,r1/z3/k3/c", ""),
])  # fmt: skip
def test_members_on_one_node_fail_together(
    nodes: str, words: tuple[str, ...], layout: str, caveat: str, tmp_path: Path
) -> None:
    """Three instances of a real cluster shared one node, and their failures were taken to be independent."""
    names = ("pg-1", "pg-2", "pg-3")
    placed = ", ".join(f"{name} on {node}" for name, node in zip(names, nodes, strict=False))
    described = Described(0.0, Description("cnpg:db/pg", names, {"manager": "cloudnative-pg", "nodes": placed}))
    path = recorded(tmp_path / "r", "prove", [described, DrillDone(1.0, drill())])
    _, text, _ = _run(str(path), "--years", "2000", *words, "--json")
    (made,) = json.loads(text)["forecasts"]
    assert made["layout"] == layout
    about = [one for one in made["caveats"] if "a node" in one]
    assert len(about) == bool(caveat) and all(caveat in one for one in about), made["caveats"]
    apart, together = 1e-5, 5e-5
    structural = made["probability_of_loss_by_structure"]["value"]
    assert structural > together if layout.count("/z1/") > 1 else structural < apart


@pytest.mark.usefixtures("quick_forecasts")
def test_the_command_prints_one_conclusion_and_json_holds_the_same() -> None:
    asked = (str(RECORDS / "prove-matrix"), "--years", "2000", "--quorum", "ANY 1,ANY 2")
    _, text, wrong = _run(*asked)
    assert wrong is None
    first = text.splitlines()[0]
    assert first.startswith("on ANY 1 strict, z1,z2,z3: ")
    assert "minutes a year by assumption" in text
    assert "simulated cluster: a model" in " ".join(text.split())
    _, out, _ = _run(*asked, "--json")
    found = json.loads(out)
    assert [one["configuration"] for one in found["forecasts"]] == ["on ANY 1 strict", "on ANY 2 strict"]
    minutes = found["forecasts"][0]["unavailable_minutes_per_year"]
    assert f"{number(minutes['value'])} minutes a year" in " ".join(text.split())
    assert minutes["low"] <= minutes["value"] <= minutes["high"]


@each([
    (("--years", "nan"), "--years"),
    (("--years", "1e99"), "--years"),
    (("--quorum", "ANY 3"), "impossible"),
    (("--quorum", "SOME 1"), "not a quorum"),
    (("--layout", "z1"), "2 to 7 members"),
    (("--levels", "sometimes"), "not a commit level"),
    (("--failures", "/nowhere.toml"), "cannot be read"),
    (("--ttl", "0s"), "not valid"),
    (("--witness", "a,b,c,d,e"), "at most 4 witnesses"),
    (("--quorum", "FIRST 0"), "is not a quorum"),
    (("--period", "0s"), "--period"),
    (("--period", "9999h"), "--period"),
])  # fmt: skip
def test_bad_input_gets_one_sentence(words: tuple[str, ...], stated: str) -> None:
    _, _, wrong = _run(str(RECORDS / "prove-matrix"), *words)
    assert isinstance(wrong, UsageError)
    assert stated in wrong.message


def test_a_record_without_drills_is_refused() -> None:
    _, _, wrong = _run(str(RECORDS / "price"))
    assert isinstance(wrong, UsageError)
    assert "no decided drill" in wrong.message


@each([
    (Description("patroni", ("n1", "n2"), {"timeouts": "fast"}, ttl_s=45.0), 45.0),
    (Description("patroni", ("n1", "n2"), ttl_s=math.nan), None),
    (Description("lab a", ("n1", "n2"), {"timeouts": "fast"}), 20.0),
    (Description("lab a", ("n1", "n2"), {"timeouts": "default"}), 30.0),
    (Description("lab a", ("n1", "n2")), None),
])  # fmt: skip
def test_patronis_ttl_is_that_of_the_cluster_that_was_drilled(description: Description, ttl_s: float | None) -> None:
    events: list[Event] = [Described(0.0, description), DrillDone(1.0, drill(rto_s=22.0))]
    assert measured([("a", events)], failures(failure("crash", 1.0))).takeovers["crash"].ttls_s == (ttl_s,)


def test_another_ttl_shifts_the_outages_of_an_external_patroni() -> None:
    kinds = failures(failure("crash", 1.0))
    events: list[Event] = [
        Described(0.0, Description("patroni", ("n1", "n2"), ttl_s=45.0)),
        *[DrillDone(1.0, drill(rto_s=50.0))] * 5,
    ]
    known = Model(topology("z1,z2,z3"), ANY_1, kinds, measured([("a", events)], kinds), Timeouts(ttl_s=20.0))
    assert set(takeovers(known, kinds.kinds[0], 10, rng())) == {25.0}
    assert not any("under which ttl" in caveat for caveat in forecast(known, "", years=100, seed=1).caveats)


def test_each_drill_is_shifted_by_its_own_ttl() -> None:
    """The ttl of the first drill was once taken for all: records of two clusters are forecast together."""
    kinds = failures(failure("crash", 1.0))
    records: list[tuple[str, list[Event]]] = [
        (name, [Described(0.0, Description(name, ("n1", "n2"), ttl_s=ttl_s)), DrillDone(1.0, drill(rto_s=rto_s))])
        for name, ttl_s, rto_s in (("slow", 45.0, 50.0), ("fast", 20.0, 25.0), ("untold", None, 33.0))
    ]
    known = Model(topology("z1,z2,z3"), ANY_1, kinds, measured(records, kinds), Timeouts(ttl_s=20.0))
    assert set(takeovers(known, kinds.kinds[0], 10, rng())) <= {25.0, 33.0}
    assert any("some records do not say under which ttl" in c for c in forecast(known, "", years=100, seed=1).caveats)


def test_a_drill_that_no_fault_is_called_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(GOOD.replace('drills = ["kill", "crash-in-place"]', 'drills = ["kil"]'))
    _, _, wrong = _run(str(RECORDS / "prove-matrix"), "--failures", str(tmp_path / "mine.toml"))
    assert isinstance(wrong, UsageError)
    assert "kil" in wrong.message
