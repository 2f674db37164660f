"""What the doctor says of values and tags that Patroni reads otherwise than they look; what it takes is silent."""

from dataclasses import replace
from typing import Any

from tests.fixtures.sick import well, with_patroni, with_patroni_members
from tests.fixtures.tiers import each
from walproof.advising.doctor.catalogue import diagnosed
from walproof.advising.doctor.finding import Finding
from walproof.model.facts import Facts
from walproof.patroni.rest import members_of

LAG, MODE, COUNT = "maximum_lag_on_failover", "synchronous_mode", "synchronous_node_count"


def found(facts: Facts) -> dict[str, Finding]:
    """The findings by the id of their check."""
    return {f.id: f for f in diagnosed(facts)}


def on_standbys(*tags: dict[str, Any], version: str = "4.1.0", **keys: object) -> Facts:
    """The sound cluster with these tags on n2 and n3."""
    facts = with_patroni(well(), **keys)
    assert facts.patroni is not None
    first, *others = (replace(m, version=version) for m in facts.patroni.members)
    return with_patroni_members(facts, first, *(replace(m, tags=t) for m, t in zip(others, tags, strict=True)))


@each([
    ({LAG: "1MB"}, f'{LAG}: "1MB" is none that Patroni reads: it uses 1048576'),
    ({LAG: "10 GB"}, f'{LAG}: "10 GB" is none that Patroni reads: it uses 1048576'),
    ({LAG: True}, f"{LAG}: true is none that Patroni reads: it uses 1048576"),
    ({LAG: [1]}, f"{LAG}: [1] is none that Patroni reads: it uses 1048576"),
    ({MODE: "strict"}, f'{MODE}: "strict" is none that Patroni reads: it uses off'),
    ({MODE: 2}, f"{MODE}: 2 is none that Patroni reads: it uses off"),
    ({"failsafe_mode": "enabled"}, 'failsafe_mode: "enabled" is none that Patroni reads: it uses off'),
    ({"primary_start_timeout": "5min"}, 'primary_start_timeout: "5min" is none that Patroni reads: it uses 300'),
    ({COUNT: "two"}, f'{COUNT}: "two" is none that Patroni reads: it uses 1'),
    ({COUNT: 0}, f"{COUNT} = 0, less than Patroni's least"),
    ({"ttl": 10, "loop_wait": 1, "retry_timeout": 3}, "ttl = 10 s: Patroni uses 20 s"),
    ({"loop_wait": 0}, "loop_wait = 0 s: Patroni uses 1 s"),
])  # fmt: skip
def test_a_value_that_patroni_does_not_take_is_named_with_what_it_uses(keys: dict[str, object], evidence: str) -> None:
    finding = found(with_patroni(well(), **keys))["patroni-value-ignored"]
    assert (finding.severity, finding.evidence) == ("warning", evidence)
    assert finding.fix.startswith("patronictl edit-config --set ")


@each([
    {"ttl": "60s"},
    {"loop_wait": "10.5"},
    {"retry_timeout": []},
    {"ttl": float("inf")},
    {"postgresql": ["use_pg_rewind"]},
    {"postgresql": {"use_pg_rewind": True, "parameters": "jit=off"}},
    {"standby_cluster": "n9"},
])  # fmt: skip
def test_a_configuration_that_patroni_refuses_is_an_error_and_ends_no_check(keys: dict[str, object]) -> None:
    finding = found(with_patroni(well(), **keys))["patroni-value-ignored"]
    assert finding.severity == "error" and "keeps the former" in finding.evidence


@each([
    {LAG: "1048576"},
    {LAG: "0x100000"},
    {MODE: "yes"},
    {MODE: 1},
    {MODE: "Quorum"},
    {"failsafe_mode": "1"},
    {"failsafe_mode": "ON"},
    {"ttl": "30", "loop_wait": "10"},
    {"ttl": 30.9},
    {"primary_start_timeout": "300"},
    {"pause": "no", "check_timeline": 0},
    {"standby_cluster": {}, "postgresql": {"use_pg_rewind": "yes", "parameters": None}},
])  # fmt: skip
def test_values_that_patroni_takes_are_silent_however_they_are_spelled(keys: dict[str, object]) -> None:
    assert diagnosed(with_patroni(well(), **keys)) == ()


@each([0, "0", 1, "1", "0.4", -1, 8191])
def test_a_lag_that_background_wal_exceeds_is_found(lag: object) -> None:
    assert found(with_patroni(well(), **{LAG: lag}))["patroni-lag-zero"].severity == "warning"
    strict = with_patroni(well(), synchronous_mode_strict="yes", **{LAG: lag})
    assert found(strict)["patroni-lag-zero"].severity == "error"


@each(["yes", 1, "1", "TRUE", "on", True])
def test_a_mode_that_is_on_is_not_called_asynchronous(mode: object) -> None:
    assert "patroni-asynchronous" not in found(with_patroni(well(), **{MODE: mode}))
    strict = with_patroni(well(), synchronous_mode="off", synchronous_mode_strict=mode)
    assert "patroni-strict-without-mode" in found(strict)


@each(["no", 0, "0", "FALSE", "strict", None])
def test_a_mode_that_is_off_is_called_asynchronous(mode: object) -> None:
    assert "patroni-asynchronous" in found(with_patroni(well(), **{MODE: mode}))


@each([{"failover_priority": 0}, {"failover_priority": "-1"}, {"nofailover": "yes"}, {"nofailover": 1}])
def test_members_of_which_none_may_lead_are_found_by_either_spelling(tags: dict[str, Any]) -> None:
    finding = found(on_standbys(tags, {"nofailover": True}))["patroni-nobody-eligible"]
    name = next(iter(tags))
    assert name in finding.evidence and f"remove '{name}: " in finding.fix


@each([
    ({"failover_priority": 0}, "3.1.2", False),
    ({"failover_priority": 0}, "3.2.0", True),
    ({"sync_priority": 0}, "4.0.7", False),
    ({"sync_priority": 0}, "4.1.0", True),
    ({"nostream": True}, "3.2.2", False),
    ({"nostream": True}, "3.3.0", True),
    ({"nosync": True, "nofailover": True}, "2.1.4", True),
    ({"failover_priority": 0}, "?", True),
    ({"failover_priority": 0}, "4.²", True),
])  # fmt: skip
def test_a_tag_that_this_patroni_does_not_know_yet_bars_nobody(
    tags: dict[str, Any], version: str, barred: bool
) -> None:
    """To it that is a tag of a user's own (releases.rst); all standbys were called ineligible."""
    rows = [{"name": n, "role": "replica", "state": "streaming", "tags": tags} for n in ("n2", "n3")]
    leader = {"name": "n1", "role": "leader", "state": "running"}
    members = members_of({"members": [leader, *rows]}, dict.fromkeys(("n1", "n2", "n3"), version))
    facts = with_patroni_members(with_patroni(well(), synchronous_mode="on"), *members)
    assert bool({"patroni-nobody-eligible", "patroni-nobody-synchronous"} & found(facts).keys()) is barred


@each([{"sync_priority": 0}, {"sync_priority": "0"}, {"nosync": "yes"}, {"nosync": 1}])
def test_members_of_which_none_may_be_synchronous_are_found_by_either_spelling(tags: dict[str, Any]) -> None:
    assert next(iter(tags)) in found(on_standbys(tags, {"nosync": True}))["patroni-nobody-synchronous"].evidence


@each([
    ({"nofailover": False, "failover_priority": 0}, "nofailover: false wins over failover_priority: 0"),
    ({"nosync": True, "sync_priority": 2}, "nosync: true wins over sync_priority: 2"),
    ({"nofailover": "false"}, 'nofailover: "false" is on'),
    ({"noloadbalance": "no"}, 'noloadbalance: "no" is on'),
    ({"failover_priority": "high"}, 'failover_priority: "high" is no number: 1'),
    ({"nostream": "archive"}, 'nostream: "archive" is off'),
])  # fmt: skip
def test_a_tag_that_does_not_mean_what_it_says_is_found(tags: dict[str, Any], clause: str) -> None:
    findings = found(on_standbys(tags, {}))
    assert findings["patroni-tag-misread"].evidence == f"to Patroni {clause}"
    assert "patroni-nobody-eligible" not in findings


@each([
    {"nofailover": False, "nosync": False, "noloadbalance": False, "clonefrom": True},
    {"failover_priority": 1, "sync_priority": "2", "nostream": "off"},
    {"nofailover": False, "failover_priority": 5},
    {"nofailover": None, "own_tag": "no"},
])  # fmt: skip
def test_tags_that_mean_what_they_say_are_silent(tags: dict[str, Any]) -> None:
    assert "patroni-tag-misread" not in found(on_standbys(tags, {}))


def test_where_patroni_makes_the_timeouts_fit_the_doctor_says_what_it_uses() -> None:
    newer = found(with_patroni(well(), ttl=20))["patroni-clockwork"]
    assert newer.severity == "warning" and newer.evidence.endswith("uses ttl 20, loop_wait 1, retry_timeout 9")
    older = found(on_standbys({}, {}, version="3.1.2", ttl=20))["patroni-clockwork"]
    assert older.severity == "error" and "uses" not in older.evidence


@each(["off", "no", 0.5, ["x"]])
def test_rewind_is_on_whenever_it_holds_anything(word: object) -> None:
    """postgresql/rewind.py asks for its truth."""
    assert "patroni-no-rewind" not in found(with_patroni(well(), postgresql={"use_pg_rewind": word}))
    erases = {"use_pg_rewind": True, "remove_data_directory_on_rewind_failure": word}
    assert "patroni-erases-divergence" in found(with_patroni(well(), postgresql=erases))
