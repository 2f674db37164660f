"""The doctor on facts in memory: nothing on a well-made cluster, every seeded error found, all four outputs."""

import json
from xml.etree import ElementTree

from tests.fixtures.doctor_page import BEGIN, END, PAGE, catalogue_table
from tests.fixtures.seeds import SEEDS
from tests.fixtures.sick import well, with_patroni, with_settings
from tests.fixtures.tiers import each
from walproof.advising.doctor.catalogue import CATALOGUE, as_json, diagnosed, failing
from walproof.advising.doctor.finding import Check, Examination, Severity
from walproof.advising.doctor.outputs import as_junit, as_sarif


@each([True, False])
def test_nothing_is_found_on_a_well_made_cluster(managed: bool) -> None:
    assert diagnosed(well(managed=managed)) == ()


def test_every_check_has_a_seed_and_an_id_of_its_own() -> None:
    assert {c.id for c in CATALOGUE} == set(SEEDS)
    assert len({c.id for c in CATALOGUE}) == len(CATALOGUE) >= 40


@each(CATALOGUE)
def test_each_seed_is_found_with_evidence_fix_and_source(check: Check) -> None:
    findings = [f for f in diagnosed(SEEDS[check.id]) if f.id == check.id]
    assert findings, f"{check.id} is not found"
    for finding in findings:
        assert finding.evidence and finding.fix and finding.could_cost and finding.source.startswith("https://")


def test_errors_come_first_and_notes_alone_do_not_fail() -> None:
    both = with_settings(with_settings(well(), "n1", fsync="off"), "n1", tcp_user_timeout="0ms")
    assert [f.severity for f in diagnosed(both)] == [Severity.ERROR, Severity.WARNING]
    assert failing(diagnosed(both))
    only_note = SEEDS["unlogged-tables"]
    assert diagnosed(only_note)
    assert not failing(diagnosed(only_note))


@each(
    [
        (c, True)
        for c in ("/bin/true", "true", ":", "", "  ", "cd .", "/bin/false", "exit 0", "echo %p", "'/bin/true' %p")
    ]
    + [(c, False) for c in ("cp %p /a/%f", "test ! -f /a/%f && cp %p /a/%f", "wal-g wal-push %p", "echo %p >> /list")]
)
def test_an_archive_that_keeps_nothing_is_found_and_is_no_archive_for_a_standby_without_slot(
    command: str, nothing: bool
) -> None:
    def ids(**words: str) -> set[str]:
        return {f.id for f in diagnosed(with_settings(SEEDS["standby-without-slot"], "*", **words))}

    kept = ids(archive_mode="on", archive_command=command)
    assert ("archive-keeps-nothing" in kept, "standby-without-slot" in kept) == (nothing, nothing)
    assert ids(archive_mode="always", archive_command=command) == kept
    assert "archive-keeps-nothing" not in ids(archive_mode="off", archive_command="(disabled)")
    by_library = ids(archive_mode="on", archive_command=command, archive_library="basic_archive")
    assert "archive-keeps-nothing" not in by_library


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


def test_json_sarif_and_junit_say_the_same() -> None:
    facts = SEEDS["fsync-off"]
    tree = json.loads(json.dumps(as_json(facts, diagnosed(facts))))
    assert tree["counts"] == {"error": 1, "warning": 0, "note": 0}
    (finding,) = tree["findings"]
    assert (finding["id"], finding["evidence"], finding["member"]) == ("fsync-off", "fsync = off", "n2")
    assert finding["where"] == "configuration file"
    examined = [Examination(facts.target, diagnosed(facts))]
    run = json.loads(as_sarif("1", examined, {}))["runs"][0]
    rules, (result,) = run["tool"]["driver"]["rules"], run["results"]
    assert len(rules) == len(CATALOGUE)
    assert rules[result["ruleIndex"]]["id"] == result["ruleId"] == "fsync-off"
    assert result["level"] == "error"
    root = ElementTree.fromstring(as_junit(examined, {}).split("\n", 1)[1])
    assert len(root.findall(".//testcase")) == len(CATALOGUE)
    assert [c.get("name") for c in root.findall(".//testcase[failure]")] == ["fsync-off"]


def test_the_page_shows_the_catalogue_as_it_is() -> None:
    text = PAGE.read_text("utf-8")
    assert text.split(BEGIN)[1].split(END)[0] == catalogue_table(), "run: python -m tests.fixtures.doctor_page"
