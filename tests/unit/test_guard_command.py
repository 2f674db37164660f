"""What `walproof guard` and drills with a guard refuse, each with one sentence and exit code 2."""

import math
from dataclasses import replace

import pytest

from tests.fixtures.command_line import ended
from walproof.cli.guard import _log as log_line
from walproof.errors import UsageError
from walproof.estimating.quantiles import median_interval
from walproof.machine.clock import RealClock
from walproof.model.drill import Drill, Findings, Verdict, Victim
from walproof.model.guarantee import Level
from walproof.patroni.rest import PatroniRest, RestAccess
from walproof.proving.campaign import planned
from walproof.proving.campaign_results import compare_guard, conclusion, sentence
from walproof.proving.loss_bounds import bounds, controls
from walproof.proving.options import parse_options
from walproof.reporting.drill_section import drill_sections
from walproof.reporting.outline import Table
from walproof.targets.patroni.takeover import PatroniTakeover
from walproof.targets.patroni.target_file import PatroniFile

DRILL = Drill(1, "freeze", Victim.LEADER, Level.ON, Verdict.HELD, "", Findings(acknowledged=100), rto_s=22.0)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["guard", "--target", "sim"], "cannot be guarded"),
        (["guard", "--suspect-after", "1ms"], "--suspect-after must be from 0.2s"),
        (["guard", "--listen", "9189"], "is not HOST:PORT"),
        (["guard", "--listen", "0.0.0.0:9189"], "lets other machines read"),
        (["guard", "--allow", "takeovers"], "is no consent"),
        (["prove", "--guard", "--target", "sim"], "cannot be guarded"),
        (["prove", "--guard", "--compare-guard", "--target", "sim"], "leave --guard out"),
        (["prove", "--compare-guard", "--storm", "2", "--target", "sim"], "compares drills of single faults"),
        (["prove", "--client-timeout", "0s", "--target", "sim"], "is no time for a client to wait"),
    ],
)
def test_what_is_not_valid_is_refused(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = ended(capsys, words)
    assert (code in (2, 3), out) == (True, "")
    assert sentence in err


ETCD = {"hosts": ["10.0.0.1:2379"], "username": "root", "scope": "main"}
DCS = [
    ({}, "does not name"),
    ({"etcd3": ETCD}, "the password of etcd is not sent to 10\\.0\\.0\\.1 over plain"),
    *(
        ({dcs: {"hosts": ["x"]}}, f"a guard cannot use {dcs} as the DCS")
        for dcs in ("etcd", "consul", "zookeeper", "kubernetes", "raft")
    ),
]


@pytest.mark.parametrize(("tree", "sentence"), DCS)
def test_a_dcs_that_a_guard_does_not_know_or_must_not_reach_so_is_named(tree: dict[str, object], sentence: str) -> None:
    file = PatroniFile.model_validate({"kind": "patroni", "rest": ["http://127.0.0.1:1"], **tree})
    takeover = PatroniTakeover(PatroniRest(RestAccess(file.rest)), file, dict, RealClock())
    with pytest.raises(UsageError, match=sentence):
        takeover.lock()


def test_drills_with_and_without_a_guard_take_turns() -> None:
    plan = planned(parse_options({"fault": "freeze", "levels": "on", "repeat": "2", "compare_guard": True}))
    assert [d.guarded for d in plan] == [True, False, True, False]
    assert {d.client_timeout_s for d in plan} == {3.0}


def arms(with_guard: list[float], without: list[float]) -> list[Drill]:
    guarded = [replace(DRILL, number=i, rto_s=s, guarded=True) for i, s in enumerate(with_guard)]
    return [*guarded, *(replace(DRILL, number=100 + i, rto_s=s) for i, s in enumerate(without))]


def test_the_comparison_is_of_the_same_fault_at_the_same_level() -> None:
    drills = arms([2.0, 3.0], [20.0, 24.0])
    drills.append(replace(DRILL, level=Level.LOCAL, rto_s=1.0, guarded=True))
    drills.append(replace(DRILL, verdict=Verdict.UNDECIDED, rto_s=90.0, guarded=True))
    (found,) = compare_guard(drills)
    assert (found.with_guard.rto_s.value, found.with_guard.worst_s) == (2.5, 3.0)
    assert (found.without.rto_s.value, found.without.drills) == (22.0, 2)
    assert (found.with_guard.undecided, found.without.undecided) == (1, 0)
    assert sentence([found]) == (
        "With a guard commits came back after 2.5 s (2 drills, worst 3.0 s) instead of 22.0 s (2 drills); "
        "lost: nothing acknowledged."
    )
    assert conclusion(drills).startswith("With a guard")


def test_the_comparison_is_a_table_of_the_report_and_of_the_terminal() -> None:
    drills = arms([2.0, 3.0], [20.0, 24.0])
    (section,) = [s for s in drill_sections(drills) if s.key == "outage"]
    (found,) = [block for block in section.blocks if isinstance(block, Table) and block.key == "guard"]
    cells = [[cell.text for cell in one] for one in found.rows]
    assert [one[:6] for one in cells] == [
        ["freeze", "on", "with", "2.5 s", "3.0 s", "0"],
        ["freeze", "on", "without", "22.0 s", "24.0 s", "0"],
    ]
    assert not [s for s in drill_sections(drills[:2]) for b in s.blocks if isinstance(b, Table) and b.key == "guard"]


def test_guarded_drills_bound_nothing_about_unguarded_ones() -> None:
    found = bounds(arms([2.0] * 3, [20.0]))
    assert sorted((kind.guarded, bound.drills) for kind, bound in found.items()) == [(False, 1), (True, 3)]
    lost = replace(DRILL, level=Level.OFF, verdict=Verdict.EXPECTED_LOSS, findings=Findings(lost=3), loss="leader gone")
    held = replace(DRILL, loss="leader gone", guarded=True)
    assert list(controls([lost, held]).values()) == [""]


def test_a_median_has_an_interval_only_where_order_statistics_give_one() -> None:
    assert not median_interval([1.0] * 5).known
    six = median_interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert (six.low, six.high) == (1.0, 6.0)
    ten = median_interval([float(i) for i in range(10)])
    assert (ten.value, ten.low, ten.high) == (4.5, 1.0, 8.0)
    assert math.isnan(median_interval([]).value)


def test_a_line_of_the_log_is_one_line_whatever_a_tag_says(capsys: pytest.CaptureFixture[str]) -> None:
    """A member's tags are another's words: they could move the terminal, or look like a line of the guard's own."""
    log_line("not ready: n2 (nofailover: \x1b[2J\n2026-11-25 08:00:00.000 n2 leads)")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("not ready: n2 (nofailover: ?[2J 2026-11-25 08:00:00.000 n2 leads)")
