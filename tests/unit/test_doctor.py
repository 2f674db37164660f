"""The doctor on facts in memory: nothing on a well-made cluster, every seeded error found, all four outputs."""

import json
from xml.etree import ElementTree

import pytest

from tests.fixtures.doctor_page import BEGIN, END, PAGE, catalogue_table
from tests.fixtures.seeds import SEEDS
from tests.fixtures.sick import well, with_patroni, with_settings
from walproof.advising.doctor.catalogue import (
    CATALOGUE,
    as_json,
    as_junit,
    as_sarif,
    diagnosed,
    failing,
)
from walproof.advising.doctor.finding import Severity


@pytest.mark.parametrize("managed", [True, False])
def test_nothing_is_found_on_a_well_made_cluster(managed: bool) -> None:
    assert diagnosed(well(managed=managed)) == ()


def test_every_check_has_a_seed_and_an_id_of_its_own() -> None:
    assert {c.id for c in CATALOGUE} == set(SEEDS)
    assert len({c.id for c in CATALOGUE}) == len(CATALOGUE) >= 40


@pytest.mark.parametrize("check", CATALOGUE, ids=lambda c: c.id)
def test_each_seed_is_found_with_evidence_fix_and_source(check: object) -> None:
    name = check.id  # type: ignore[attr-defined]
    found = [f for f in diagnosed(SEEDS[name]) if f.id == name]
    assert found, f"{name} is not found"
    for finding in found:
        assert finding.evidence
        assert finding.fix
        assert finding.could_cost
        assert finding.source.startswith("https://")


def test_evidence_names_the_value_and_the_member() -> None:
    (found,) = [f for f in diagnosed(SEEDS["fsync-off"]) if f.id == "fsync-off"]
    assert found.evidence == "fsync = off"
    assert found.member == "n2"
    assert found.where == "configuration file"


def test_errors_come_first_and_notes_alone_do_not_fail() -> None:
    both = with_settings(with_settings(well(), "n1", fsync="off"), "n1", tcp_user_timeout="0ms")
    assert [f.severity for f in diagnosed(both)] == [Severity.ERROR, Severity.WARNING]
    assert failing(diagnosed(both))
    only_note = SEEDS["unlogged-tables"]
    assert diagnosed(only_note)
    assert not failing(diagnosed(only_note))


def test_the_fix_is_written_for_the_manager() -> None:
    plain = diagnosed(with_settings(well(managed=False), "n1", fsync="off"))[0]
    managed = diagnosed(with_settings(well(), "n1", fsync="off"))[0]
    assert plain.fix.startswith("ALTER SYSTEM")
    assert managed.fix.startswith("patronictl edit-config")


def test_a_delayed_replay_is_an_error_only_where_commits_wait_for_it() -> None:
    delayed = SEEDS["replay-delayed"]
    waits = with_settings(delayed, "*", synchronous_commit="remote_apply")
    assert {f.severity for f in diagnosed(delayed) if f.id == "replay-delayed"} == {Severity.WARNING}
    assert {f.severity for f in diagnosed(waits) if f.id == "replay-delayed"} == {Severity.ERROR}


def test_what_an_old_patroni_lacks_is_reported() -> None:
    old = SEEDS["patroni-quorum-needs-4"]
    assert any("3.3.2" in f.evidence for f in diagnosed(old))
    (off,) = [f for f in diagnosed(with_patroni(well(), synchronous_mode="off")) if f.id == "patroni-asynchronous"]
    assert "quorum" in off.fix


def test_json_is_one_object_with_every_finding() -> None:
    facts = SEEDS["fsync-off"]
    tree = json.loads(json.dumps(as_json(facts, diagnosed(facts))))
    assert tree["counts"] == {"error": 1, "warning": 0, "note": 0}
    assert tree["findings"][0]["id"] == "fsync-off"


def test_sarif_results_point_at_their_rules() -> None:
    facts = SEEDS["names-star"]
    run = as_sarif(facts, diagnosed(facts), "1")["runs"][0]
    rules = run["tool"]["driver"]["rules"]
    assert len(rules) == len(CATALOGUE)
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("error", "warning", "note")


def test_junit_counts_a_failed_case_per_check() -> None:
    facts = SEEDS["fsync-off"]
    root = ElementTree.fromstring(as_junit(facts, diagnosed(facts)).split("\n", 1)[1])
    assert len(root.findall(".//testcase")) == len(CATALOGUE)
    assert [c.get("name") for c in root.findall(".//testcase[failure]")] == ["fsync-off"]


def test_the_page_shows_the_catalogue_as_it_is() -> None:
    text = PAGE.read_text("utf-8")
    assert text.split(BEGIN)[1].split(END)[0] == catalogue_table(), "run: python -m tests.fixtures.doctor_page"
