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

import jsonschema  # type: ignore[import-untyped]
import numpy as np
import pytest

from tests.fixtures.command_line import ended
from tests.unit.test_json_schemas import SALVAGED
from walproof.errors import MachineError, TargetError, WaitTimeout
from walproof.lab.blueprint import Blueprint
from walproof.model.drill import Verdict
from walproof.model.guarantee import Level
from walproof.model.load import Attempts, Outcome
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

ATTEMPTS = (
    # outcome, on the leader, position
    (Outcome.ACKNOWLEDGED, True, 100),
    (Outcome.ACKNOWLEDGED, False, 200),
    (Outcome.ACKNOWLEDGED, False, 300),
    (Outcome.UNKNOWN, False, 400),
    (Outcome.UNKNOWN, True, 500),
    (Outcome.REFUSED, False, 0),
)
_SIZE = len(ATTEMPTS)
ATTEMPTED = Attempts(
    writer=np.zeros(_SIZE, np.int32),
    number=np.arange(_SIZE, dtype=np.int64),
    started=np.arange(_SIZE, dtype=np.float64),
    ended=np.arange(_SIZE, dtype=np.float64),
    outcome=np.array([one[0] for one in ATTEMPTS], np.int8),
    level=np.zeros(_SIZE, np.int8),
    server=np.zeros(_SIZE, np.int16),
    timeline=np.ones(_SIZE, np.int32),
    lsn=np.array([one[2] for one in ATTEMPTS], np.uint64),
    names=np.zeros(_SIZE, np.int16),
    checksum=np.zeros(_SIZE, np.uint32),
)


def history(level: Level = Level.OFF, **changed: Any) -> Any:
    readings = (SimpleNamespace(present=np.array([one[1] for one in ATTEMPTS])),)
    run = SimpleNamespace(error="", incomplete="")
    given = {"planned": SimpleNamespace(level=level, number=1), "run": run, "readings": readings}
    return SimpleNamespace(**{**given, "attempts": ATTEMPTED, **changed})


def found(rows: set[Key], written_to: int = 1000, *undecided: str, members: tuple[str, ...] = ("n1",)) -> Salvaged:
    return Salvaged(frozenset(rows), written_to, undecided, members)


def counts(one: SalvageJudged) -> tuple[str, int, int, int, int, int]:
    return one.verdict.value, one.lost, one.found, one.unwritten, one.not_found, one.not_lost


@pytest.mark.parametrize(
    ("rows", "written_to", "says"),
    [
        ({(0, 1), (0, 2)}, 1000, ("held", 2, 2, 0, 0, 0)),
        ({(0, 1), (0, 2), (0, 3)}, 1000, ("held", 2, 2, 0, 0, 0)),  # a commit that nobody heard the end of
        ({(0, 1)}, 1000, ("broken", 2, 1, 0, 1, 0)),
        ({(0, 1)}, 300, ("held", 2, 1, 1, 0, 0)),  # no WAL reached it
        (set(), 250, ("broken", 2, 0, 1, 1, 0)),
        ({(0, 0), (0, 1), (0, 2)}, 1000, ("broken", 2, 2, 0, 0, 1)),  # the leader has it
        ({(0, 1), (0, 2), (0, 4)}, 1000, ("broken", 2, 2, 0, 0, 1)),
        ({(0, 1), (0, 2), (0, 5)}, 1000, ("broken", 2, 2, 0, 0, 1)),  # refused
        ({(0, 1), (0, 2), (7, 1)}, 1000, ("broken", 2, 2, 0, 0, 1)),  # of no attempt
        ({(0, 1), (0, 2), (1 << 30, 1)}, 1000, ("broken", 2, 2, 0, 0, 1)),  # no writer has that number
    ],
)
def test_rows_found_are_held_against_the_ledger(
    rows: set[Key], written_to: int, says: tuple[str, int, int, int, int, int]
) -> None:
    assert counts(salvage_judged(9.0, history(), found(rows, written_to))) == says


@pytest.mark.parametrize("level", [Level.LOCAL, Level.REMOTE_WRITE, Level.ON, Level.REMOTE_APPLY])
def test_only_commits_at_off_may_be_in_no_servers_wal(level: Level) -> None:
    assert counts(salvage_judged(9.0, history(level), found(set(), 250))) == ("broken", 2, 0, 0, 2, 0)
    nowhere = salvage_judged(9.0, history(level), Salvaged())
    assert counts(nowhere) == ("undecided", 2, 0, 0, 2, 0)
    assert "no disk of an old leader was copied" in nowhere.why


def test_where_no_old_leader_was_rewound_at_off_the_lost_commits_were_never_written() -> None:
    assert counts(salvage_judged(9.0, history(), Salvaged())) == ("held", 2, 0, 2, 0, 0)


@pytest.mark.parametrize(
    ("salvaged", "changed", "verdict", "why"),
    [
        (found(set(), 1 << 62, "n1: it was rewound"), {}, "undecided", "n1: it was rewound"),
        (found({(0, 1)}, 1000, "n1: the WAL goes on"), {}, "undecided", "n1: the WAL goes on"),
        (found({(0, 1), (0, 2)}, 1000, "n2: it was rewound"), {}, "held", "n2: it was rewound"),  # all were found
        (found({(7, 1)}), {"run": SimpleNamespace(error="", incomplete="a writer died")}, "undecided", "a writer died"),
        (found(set()), {"run": SimpleNamespace(error="n1 is down", incomplete="")}, "undecided", "n1 is down"),
        (found({(0, 1)}), {"readings": ()}, "undecided", "the ledger could not be read"),
        (found(set()), {"readings": ()}, "undecided", "the ledger could not be read"),
    ],
)
def test_what_could_not_be_read_leaves_the_missing_undecided(
    salvaged: Salvaged, changed: dict[str, Any], verdict: str, why: str
) -> None:
    done = salvage_judged(9.0, history(**changed), salvaged)
    assert (done.verdict, done.why) == (verdict, why)


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


def test_each_lost_commit_of_a_drill_is_found_again_and_named_everywhere(run: Run, salvage: Salvage) -> None:
    code, out, err = run("--salvage", "--record", "rec", "--junit", "cases.xml")
    (seen,) = (e for e in read(Path("rec")).events if isinstance(e, SalvageJudged))
    assert code == 0 and seen.verdict is Verdict.HELD and seen.lost == seen.found > 0
    assert 0 < len(seen.rows) <= 5 and seen.members == ("n1",) and "found again on n1's disk; rows: " in seen.text
    assert seen.text in " ".join(out.split()) and seen.text in err
    assert (
        'name="drill 1: salvage"' in Path("cases.xml").read_text() and 'failures="0"' in Path("cases.xml").read_text()
    )
    assert salvage.disks.asked == ["kept", "discarded", "ended"]


def test_a_report_has_a_line_of_each_drills_salvage(
    run: Run, salvage: Salvage, capsys: pytest.CaptureFixture[str]
) -> None:
    run("--salvage", "--record", "rec")
    (seen,) = (e for e in read(Path("rec")).events if isinstance(e, SalvageJudged))
    markdown = ended(capsys, ["report", "rec", "--markdown"])[1]
    assert ended(capsys, ["report", "rec", "--html", "page.html"])[0] == 0
    for page in (markdown, Path("page.html").read_text()):
        assert f"{seen.lost:,} lost commits, {seen.found:,} found again on n1" in page and seen.rows[0] in page


def test_a_lost_commit_that_was_written_and_is_not_found_breaks_the_run(run: Run, salvage: Salvage) -> None:
    salvage.less = 2
    code, out, _ = run("--salvage", "--record", "rec", "--json", "--junit", "cases.xml")
    told = json.loads(out)
    jsonschema.validate(told, SALVAGED)
    (one,) = told["salvage"]
    assert (code, one["verdict"], one["not_found"], one["lost"] - one["found"]) == (1, "broken", 2, 2)
    assert told["drills"][0]["verdict"] == "expected loss"
    assert 'failures="1"' in Path("cases.xml").read_text()


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        ("refuses", MachineError("it was rewound: its backup_label says pg_rewind", ""), "n1: it was rewound"),
        ("undecided", ("the WAL goes on",), "n1: the WAL goes on"),
        ("name", "data.before-rewind.1.unfinished", "n1: its disk was not copied to the end"),
        ("leads", False, "n1: the lab has no leader just now"),
    ],
)
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
    keeps = importlib.import_module("walproof.cli.prove_salvage")
    one = keeps._judged(
        salvage.disks, SimpleNamespace(now=lambda: 5.0), Path("rec"), SimpleNamespace(number=1, why="x")
    )
    assert one == SalvageJudged(5.0, 1, Verdict.UNDECIDED, why="no ledger: x")
    assert salvage.disks.asked == ["discarded"]


def test_without_the_option_no_disk_is_copied(run: Run, salvage: Salvage) -> None:
    assert run("--record", "rec")[0] == 0
    assert not salvage.disks.asked
    assert not [e for e in read(Path("rec")).events if isinstance(e, SalvageJudged)]


def test_a_dry_run_says_that_commits_are_looked_for_and_copies_nothing(run: Run, salvage: Salvage) -> None:
    assert "each lost commit looked for on the old leader's disk" in run("--salvage", "--dry-run")[1]
    assert json.loads(run("--salvage", "--dry-run", "--json")[1])["salvage"] is True
    assert not salvage.disks.asked


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--target", "sim"), "simulated has no --salvage: walproof copies the disks of a lab's members alone"),
        (("--target", "sim", "--dry-run"), "simulated has no --salvage"),
        (("--pitfall", "P1"), "a pitfall has no ledger to salvage"),
    ],
)
def test_where_disks_are_not_copied_it_is_refused(run: Run, words: tuple[str, ...], says: str) -> None:
    code, out, err = run("--salvage", *words)
    assert (code, out) == (2, "") and says in err


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


def test_a_lab_without_root_is_refused_before_anything_is_done(
    run: Run, salvage: Salvage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.import_module("walproof.cli.prove_salvage"), "require_root", plan.require_root)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    code, _, err = run("--salvage", "--record", "rec")
    assert code == 3 and "takes root" in err
    assert not Path("rec").exists() and not salvage.disks.asked


def test_a_state_folder_below_one_of_everybodys_is_refused_before_a_drill(
    run: Run, salvage: Salvage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    keeps = importlib.import_module("walproof.cli.prove_salvage")
    monkeypatch.setattr(keeps, "require_private_state", drill.require_private_state)
    tmp_path.chmod(0o777)
    monkeypatch.setenv("WALPROOF_STATE", str(tmp_path / "state"))
    code, _, err = run("--salvage", "--record", "rec")
    assert code == 2 and "is no place for root to write" in err and "WALPROOF_STATE" in err
    assert not Path("rec").exists() and not salvage.disks.asked
