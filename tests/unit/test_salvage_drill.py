"""`walproof prove --salvage`: the ledger lets no row pass that salvage missed or made up, on a simulated cluster."""

import csv
import importlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from tests.fixtures.attempts import attempts
from tests.fixtures.command_line import ended
from tests.fixtures.tiers import every
from walproof.errors import MachineError, TargetError, WaitTimeout
from walproof.lab.blueprint import Blueprint
from walproof.model.drill import Verdict
from walproof.model.guarantee import Level
from walproof.model.load import Outcome
from walproof.model.ports import Capabilities
from walproof.model.salvage import Salvaged, SalvageJudged
from walproof.model.topology import Endpoint
from walproof.proving.history import decode
from walproof.proving.lost_commits import lost_rows
from walproof.proving.salvaged import salvage_judged
from walproof.records.reader import read
from walproof.salvaging import drill, plan
from walproof.targets.lab.target import LabOldDisks
from walproof.targets.simulated.clock import VirtualClock
from walproof.targets.simulated.cluster import Nature
from walproof.targets.simulated.target import Simulated

Run = Callable[..., tuple[int, str, str]]
Key = tuple[int, int]

# The ledger judges

A, U, R = Outcome.ACKNOWLEDGED, Outcome.UNKNOWN, Outcome.REFUSED
ATTEMPTED = attempts(
    6, outcome=np.array([A, A, A, U, U, R], np.int8), lsn=np.array([100, 200, 300, 400, 500, 0], np.uint64)
)
ON_LEADER = np.array([True, False, False, False, True, False])


def history(level: Level = Level.OFF, **changed: Any) -> Any:
    run = SimpleNamespace(error="", incomplete="")
    given = {"planned": SimpleNamespace(level=level, number=1), "run": run}
    readings = (SimpleNamespace(present=ON_LEADER),)
    return SimpleNamespace(**{**given, "readings": readings, "attempts": ATTEMPTED, **changed})


def found(rows: set[Key], written_to: int = 1000, *undecided: str) -> Salvaged:
    return Salvaged(frozenset(rows), written_to, undecided, ("n1",))


def run_of(**words: str) -> dict[str, Any]:
    return {"run": SimpleNamespace(**{"error": "", "incomplete": ""} | words)}


BOTH = {(0, 1), (0, 2)}
"""The lost ones: acknowledged, and not on the leader."""


def test_rows_found_are_held_against_the_ledger() -> None:
    rows: list[tuple[Salvaged, dict[str, Any], str, tuple[int, ...], str]] = [
        # verdict; lost, found, in no server's WAL, not found, found and not lost; why
        (found(BOTH), {}, "held", (2, 2, 0, 0, 0), ""),
        (found(BOTH | {(0, 3)}), {}, "held", (2, 2, 0, 0, 0), ""),  # a commit that nobody heard the end of
        (found({(0, 1)}), {}, "broken", (2, 1, 0, 1, 0), ""),
        (found({(0, 1)}, 300), {}, "held", (2, 1, 1, 0, 0), ""),  # no WAL reached it
        (found(set(), 250), {}, "broken", (2, 0, 1, 1, 0), ""),
        (found(BOTH | {(0, 0)}), {}, "broken", (2, 2, 0, 0, 1), ""),  # the leader has it
        (found(BOTH | {(0, 4)}), {}, "broken", (2, 2, 0, 0, 1), ""),
        (found(BOTH | {(0, 5)}), {}, "broken", (2, 2, 0, 0, 1), ""),  # refused
        (found(BOTH | {(7, 1)}), {}, "broken", (2, 2, 0, 0, 1), ""),  # of no attempt
        (found(BOTH | {(1 << 30, 1)}), {}, "broken", (2, 2, 0, 0, 1), ""),  # no writer has that number
        # Only at off may commits be in no server's WAL.
        *((found(set(), 250), {"level": level}, "broken", (2, 0, 0, 2, 0), "")
          for level in (Level.LOCAL, Level.REMOTE_WRITE, Level.ON, Level.REMOTE_APPLY)),
        (Salvaged(), {}, "held", (2, 0, 2, 0, 0), ""),
        (Salvaged(), {"level": Level.LOCAL}, "undecided", (2, 0, 0, 2, 0), "no disk of an old leader was copied"),
        # What could not be read leaves the missing undecided.
        (found(set(), 1 << 62, "n1: rewound"), {}, "undecided", (2, 0, 0, 2, 0), "n1: rewound"),
        (found({(0, 1)}, 1000, "n1: it goes on"), {}, "undecided", (2, 1, 0, 1, 0), "n1: it goes on"),
        (found(BOTH, 1000, "n2: rewound"), {}, "held", (2, 2, 0, 0, 0), "n2: rewound"),  # all were found
        (found({(7, 1)}), run_of(incomplete="a writer died"), "undecided", (2, 0, 0, 2, 1), "a writer died"),
        (found(set()), run_of(error="n1 is down"), "undecided", (2, 0, 0, 2, 0), "n1 is down"),
        (found({(0, 1)}), {"readings": ()}, "undecided", (0, 0, 0, 0, 1), "the ledger could not be read"),
        (found(set()), {"readings": ()}, "undecided", (0, 0, 0, 0, 0), "the ledger could not be read"),
    ]  # fmt: skip

    def says(salvaged: Salvaged, changed: dict[str, Any], verdict: str, counts: tuple[int, ...], why: str) -> None:
        one = salvage_judged(9.0, history(**changed), salvaged)
        assert one.verdict.value == verdict
        assert (one.lost, one.found, one.unwritten, one.not_found, one.not_lost) == counts
        assert why in one.why and bool(one.why) == bool(why)

    every(rows, says)


def test_the_report_names_a_handful_of_lost_rows_those_that_were_not_found_first() -> None:
    done = salvage_judged(9.0, history(), found({(0, 1)}))
    assert done.text == "drill 1, salvage: ✘ 2 lost commits, 1 found again on n1's disk, 1 not found; rows: 0/2, 0/1"
    many = replace(done, lost=1200, found=1000, unwritten=199, members=("n1", "n3"), why="x", verdict=Verdict.UNDECIDED)
    assert many.text == (
        "drill 1, salvage: ? 1,200 lost commits, 1,000 found again on n1's, n3's disk, 199 in no server's WAL,"
        " 1 not found; undecided: x; rows: 0/2, 0/1 and 1,198 more"
    )
    nothing = SalvageJudged(9.0, 2, Verdict.HELD)
    assert nothing.text == "drill 2, salvage: ✔ 0 lost commits, 0 found again"


# The drills


@dataclass
class Disks:
    """One copy after each drill, until it is discarded; notes what is asked."""

    folder: Path
    programs: Path = Path("/usr/lib/postgresql/17/bin")
    name: str = "data.before-rewind.1"
    asked: list[str] = field(default_factory=list)
    there: bool = True
    leads: bool = True

    @contextmanager
    def kept(self, script: str) -> Iterator[None]:
        assert f"exec {self.programs}/pg_rewind" in script and script.startswith("#!/bin/sh")
        self.asked.append("kept")
        try:
            yield
        finally:
            self.asked.append("ended")

    def copies(self) -> Iterator[tuple[str, Path]]:
        if self.there:
            yield "n1", self.folder / self.name
        self.asked.append("discarded")

    def dsn(self) -> str:
        if not self.leads:
            raise TargetError("the lab has no leader just now", "")
        return "host=here"


class Able(Simulated):
    """A simulated cluster whose disks are copied."""

    def __init__(self, disks: Disks) -> None:
        super().__init__(Nature(slowness=3))
        self.disks = disks

    def capabilities(self) -> Capabilities:
        return replace(super().capabilities(), old_disks=self.disks)


@dataclass
class Salvage:
    """In place of the salvage of a real disk: finds what the ledger of the record calls lost, but the first `less`."""

    folder: Path
    disks: Disks
    less: int = 0
    undecided: tuple[str, ...] = ()
    refuses: MachineError | None = None
    spans: tuple[int, ...] = (1,)

    def plan(self, path: Path, dsn: str, archive: None, programs: Path) -> Any:
        assert (path.name, dsn, programs) == (self.disks.name, "host=here", self.disks.programs)
        if self.refuses is not None:
            raise self.refuses
        return SimpleNamespace(spans=self.spans)

    def run(self, chosen: Any, dsn: str, out: Path, progress: object) -> dict[str, Any]:
        (one,) = (self.folder / "rec/files").glob("*.history")
        told = decode(one.read_bytes())
        lost = lost_rows(told.attempts, told.readings)
        keys = zip(told.attempts.writer[lost].tolist(), told.attempts.number[lost].tolist(), strict=True)
        target = out / "000001_postgres"
        target.mkdir(parents=True)
        with (target / "000001_walproof.walproof_ledger.csv").open("w", newline="") as file:
            writer = csv.writer(file, quoting=csv.QUOTE_ALL)
            writer.writerow(["walproof_change", "walproof_state", "walproof_version", "drill", "writer", "number"])
            for key in [*keys][self.less :]:
                writer.writerow(["insert", "clean", "lost", 1, *key])
            writer.writerow(["delete", "clean", "at the fork", 1, 3, 99999])
            writer.writerow(["insert", "clean", "lost", 7, 3, 99999])  # another drill's
        return {"wal_written_to": "FFFFF/FFFFFFFF", "undecided": list(self.undecided)}


@pytest.fixture
def salvage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Salvage:
    one = Salvage(tmp_path, Disks(tmp_path))
    target = Able(one.disks)
    monkeypatch.setenv("WALPROOF_STATE", str(tmp_path))
    monkeypatch.setattr(importlib.import_module("walproof.cli.prove"), "choose", lambda text: target)
    for name in ("require_root", "require_private_state"):
        monkeypatch.setattr(importlib.import_module("walproof.cli.prove_salvage"), name, lambda: None)
    monkeypatch.setattr(drill, "plan", one.plan)
    monkeypatch.setattr(drill, "run", one.run)
    return one


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `prove` of one kill at off in an empty directory; exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: ended(capsys, ["prove", "--levels", "off", "--writers", "4", *words])


def test_each_lost_commit_of_a_drill_is_found_again_and_named_everywhere(
    run: Run, salvage: Salvage, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run("--salvage", "--record", "rec", "--junit", "cases.xml")
    (seen,) = (e for e in read(Path("rec")).events if isinstance(e, SalvageJudged))
    cases = Path("cases.xml").read_text()
    assert code == 0 and seen.verdict is Verdict.HELD and seen.lost == seen.found > 0
    assert 0 < len(seen.rows) <= 5 and seen.members == ("n1",) and "found again on n1's disk; rows: " in seen.text
    assert seen.text in " ".join(out.split()) and seen.text in err
    assert 'name="drill 1: salvage"' in cases and 'failures="0"' in cases
    assert salvage.disks.asked == ["kept", "discarded", "ended"]
    markdown = ended(capsys, ["report", "rec", "--markdown"])[1]
    assert ended(capsys, ["report", "rec", "--html", "page.html"])[0] == 0
    for page in (markdown, Path("page.html").read_text()):
        assert f"{seen.lost:,} lost commits, {seen.found:,} found again on n1" in page and seen.rows[0] in page


def test_a_lost_commit_that_was_written_and_is_not_found_breaks_the_run(run: Run, salvage: Salvage) -> None:
    salvage.less = 2
    code, out, _ = run("--salvage", "--record", "rec", "--json", "--junit", "cases.xml")
    told = json.loads(out)
    (one,) = told["salvage"]
    numbers = ("number", "lost", "found", "unwritten", "not_found", "not_lost")
    assert {name: type(value) for name, value in one.items()} == dict.fromkeys(numbers, int) | {
        "at": float, "kind": str, "verdict": str, "why": str, "members": list, "rows": list
    }  # fmt: skip
    assert (code, one["verdict"], one["not_found"], one["lost"] - one["found"]) == (1, "broken", 2, 2)
    assert told["drills"][0]["verdict"] == "expected loss"
    assert 'failures="1"' in Path("cases.xml").read_text()


@pytest.mark.parametrize(("name", "changes", "says"), [
    ("refuses", MachineError("it was rewound: its backup_label says pg_rewind", ""), "n1: it was rewound"),
    ("undecided", ("the WAL goes on",), "n1: the WAL goes on"),
    ("name", "data.before-rewind.1.unfinished", "n1: its disk was not copied to the end"),
    ("leads", False, "n1: the lab has no leader just now"),
])  # fmt: skip
def test_a_disk_that_cannot_be_read_leaves_it_undecided(
    run: Run, salvage: Salvage, name: str, changes: object, says: str
) -> None:
    salvage.less = 1
    setattr(salvage.disks if name in ("name", "leads") else salvage, name, changes)
    code, out, err = run("--salvage", "--record", "rec", "--json")
    (one,) = json.loads(out)["salvage"]
    assert (code, one["verdict"]) == (4, "undecided"), err
    assert says in one["why"]
    assert salvage.disks.asked == ["kept", "discarded", "ended"]


def test_a_drill_without_a_ledger_is_undecided_and_its_copies_are_discarded(run: Run, salvage: Salvage) -> None:
    salvage.disks.there = False
    keeps, now = importlib.import_module("walproof.cli.prove_salvage"), SimpleNamespace(now=lambda: 5.0)
    one = keeps._judged(salvage.disks, now, Path("rec"), SimpleNamespace(number=1, why="x"))
    assert one == SalvageJudged(5.0, 1, Verdict.UNDECIDED, why="no ledger: x")
    assert salvage.disks.asked == ["discarded"]


def test_no_disk_is_copied_without_the_option_or_in_a_dry_run(run: Run, salvage: Salvage) -> None:
    assert run("--record", "rec")[0] == 0
    assert not [e for e in read(Path("rec")).events if isinstance(e, SalvageJudged)]
    assert "each lost commit looked for on the old leader's disk" in run("--salvage", "--dry-run")[1]
    assert json.loads(run("--salvage", "--dry-run", "--json")[1])["salvage"] is True
    assert not salvage.disks.asked


def test_where_disks_are_not_copied_it_is_refused(run: Run) -> None:
    def refused(words: tuple[str, ...], says: str) -> None:
        code, out, err = run("--salvage", *words)
        assert (code, out) == (2, "") and says in err

    no_lab = "simulated has no --salvage: walproof copies the disks of a lab's members alone"
    no_ledger = (("--pitfall", "P1"), "a pitfall has no ledger to salvage")
    every([(("--target", "sim"), no_lab), (("--target", "sim", "--dry-run"), no_lab), no_ledger], refused)


def test_a_leader_that_is_silent_for_a_moment_is_asked_again() -> None:
    answers = [None, None, Endpoint((("n2", 5432),))]

    def leader() -> Endpoint:
        if (one := answers.pop(0)) is None:
            raise TargetError("the lab has no leader just now", "")
        return one

    disks = LabOldDisks(Path("/bin"), cast(Blueprint, None), VirtualClock(), leader)
    assert "host='n2'" in disks.dsn() and not answers
    answers += [None] * 1000
    with pytest.raises(WaitTimeout, match="a new leader"):
        disks.dsn()


def test_without_root_or_a_place_for_it_alone_nothing_is_done(
    run: Run, salvage: Salvage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    keeps = importlib.import_module("walproof.cli.prove_salvage")
    monkeypatch.setattr(keeps, "require_private_state", drill.require_private_state)
    tmp_path.chmod(0o777)
    monkeypatch.setenv("WALPROOF_STATE", str(tmp_path / "state"))
    code, _, err = run("--salvage", "--record", "rec")
    assert code == 2 and "is no place for root to write" in err and "WALPROOF_STATE" in err
    monkeypatch.setattr(keeps, "require_root", plan.require_root)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    code, _, err = run("--salvage", "--record", "rec")
    assert code == 3 and "takes root" in err
    assert not Path("rec").exists() and not salvage.disks.asked
