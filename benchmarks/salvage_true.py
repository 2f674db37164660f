"""`python -m benchmarks.salvage_true [--rounds 6] [--port 5870]`: what `walproof salvage` finds, judged by the ledger.

The lab's pg_rewind is the program that `salvage --keep` prints: it copies the old leader's data directory first.
After each drill every copy is salvaged against the leader. Every row that was acknowledged and is gone must be found,
unless it was committed at `off` and the copies' WAL ended before it when the server crashed (none had written it); what
else is found must be gone too, and of an attempt that nobody heard the end of. Then the SQL is applied to the leader in
one transaction, and every row that was found must be there. Needs root. A round has six drills."""

import csv
import os
import re
import shutil
import subprocess
import tempfile
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
from psycopg.conninfo import make_conninfo

from benchmarks.command import command, judged
from benchmarks.temporary_lab import benchmark_lab
from walproof.errors import Error
from walproof.lab import patroni
from walproof.lab.blueprint import Disk
from walproof.lab.create import LabOrder
from walproof.lab.home import state_folder
from walproof.model.guarantee import Level
from walproof.model.load import Outcome
from walproof.model.units import lsn_text
from walproof.model.waiting import Wait, wait_for
from walproof.proving.campaign import PlannedDrill, drawn
from walproof.proving.faults import CATALOGUE, IN_STORMS, STORM
from walproof.proving.history import History, decode, history_name
from walproof.proving.lost_commits import lost_rows
from walproof.proving.run import Shell, one_drill
from walproof.salvaging.plan import Plan, plan
from walproof.salvaging.report import KEEP
from walproof.salvaging.salvage import run
from walproof.salvaging.wal import position
from walproof.targets.lab.target import LabTarget

ROUND = (
    ("kill", Level.OFF), ("partition", Level.LOCAL), ("partition", Level.REMOTE_WRITE), ("isolate", Level.LOCAL),
    ("power-cut", Level.OFF), ("storm", Level.LOCAL),
)  # fmt: skip
ROLE = "CREATE ROLE salvager LOGIN REPLICATION BYPASSRLS PASSWORD 'salvager' IN ROLE pg_read_all_data"
Key = tuple[int, int]
"""Writer and number of an attempt."""
ALL = 1 << 64
"""A WAL position after every other."""


@dataclass(frozen=True, slots=True)
class Found:
    """What salvage read of the copies of one drill: rows of its ledger, and the WAL position where reading ended.

    `absent`: rows that the leader does not hold once the SQL was applied.
    """

    rows: frozenset[Key]
    read_to: int
    undecided: tuple[str, ...]
    copies: int
    absent: int = 0


@dataclass(frozen=True, slots=True)
class Judged:
    """Numbers of rows: lost by the ledger; found; lost, not found, in no copy's WAL; what is wrong both ways; found and
    not there after the SQL was applied."""

    lost: int
    found: int
    unwritten: int
    not_found: int
    not_lost: int
    not_applied: int = 0

    @property
    def wrong(self) -> int:
        return self.not_found + self.not_lost + self.not_applied


def judge(history: History, found: Found) -> Judged:
    """The rows found beside those that the ledger calls lost."""
    attempts = history.attempts
    keys = list(zip(attempts.writer.tolist(), attempts.number.tolist(), strict=True))
    lost = lost_rows(attempts, history.readings)
    absent = ~history.readings[0].present if history.readings else np.zeros(len(keys), bool)
    unheard = absent & (attempts.outcome != Outcome.REFUSED)
    missing = {key: int(lsn) for key, is_lost, lsn in zip(keys, lost, attempts.lsn, strict=True) if is_lost}
    missing = {key: lsn for key, lsn in missing.items() if key not in found.rows}
    # Every other level waits for the disk of the leader: without a copy, or beyond its WAL, salvage missed them.
    may_be_unwritten = history.planned.level is Level.OFF
    unwritten = sum(may_be_unwritten and (lsn == 0 or lsn >= found.read_to) for lsn in missing.values())
    allowed = {key for key, may in zip(keys, unheard, strict=True) if may}
    counts = len(found.rows), unwritten, len(missing) - unwritten, len(found.rows - allowed)
    return Judged(int(lost.sum()), *counts, found.absent)


def keeping(target: LabTarget) -> None:
    """Patroni runs, instead of pg_rewind, what `salvage --keep` prints; and a role that reads is there."""
    script = KEEP[KEEP.index("    #!/bin/sh") : KEEP.index("Once it has")]
    own = str(target.blueprint.postgres_bin / "pg_rewind")
    program = target.blueprint.home / "pg_rewind_after_copy"
    program.write_text(textwrap.dedent(script).replace("/usr/lib/postgresql/17/bin/pg_rewind", own))
    program.chmod(0o755)
    patroni.rest(target.blueprint).patch({"postgresql": {"bin_name": {"pg_rewind": str(program)}}})
    with psycopg.connect(target.endpoint("direct").client_conninfo(), autocommit=True) as connection:
        connection.execute(ROLE)
    target.clock.pause(5.0)  # every member's Patroni reads the configuration once in its loop


def copies(target: LabTarget) -> list[Path]:
    """Data directories as they were before a rewind, oldest first."""
    folders = [target.blueprint.data_dir(member).parent for member in target.blueprint.members]
    return sorted(path for folder in folders for path in folder.glob("data.before-rewind.*"))


def ledger_rows(out: Path, drill: int) -> Iterator[Key]:
    """Writers and numbers of that drill's rows in the CSV files below `out`."""
    for path in out.glob("*/*_walproof.walproof_ledger.csv"):
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                if (row["walproof_version"], row["drill"]) == ("lost", str(drill)):
                    yield int(row["writer"]), int(row["number"])


def apply(target: LabTarget, databases: Iterable[dict[str, Any]]) -> None:
    """The files of each database in one transaction, on the leader."""
    for one in databases:
        words = target.endpoint("direct").client_conninfo(dbname=one["database"])
        with psycopg.connect(words) as connection:
            for path in sorted(Path(one["files"]).glob("*.sql")) if one["files"] else ():
                connection.execute(path.read_bytes())


def held(target: LabTarget, drill: int) -> set[Key]:
    """Rows of that drill that the leader holds."""
    with psycopg.connect(target.endpoint("direct").client_conninfo()) as connection:
        query = "SELECT writer, number FROM walproof.walproof_ledger WHERE drill = %s"
        return {(int(writer), int(number)) for writer, number in connection.execute(query, (drill,))}


def crashed_at(chosen: Plan) -> int:
    """Where WAL begins that was written after a crash, over what had not been flushed: at the checkpoint with which the
    old leader came back; ALL without one."""
    span = chosen.spans[0]
    words = ("-t", str(span.timeline), "-s", lsn_text(span.start), "--rmgr=XLOG")
    argv: list[str | Path] = [chosen.old.programs / "pg_waldump", "-p", chosen.old.wal, *words]
    said = subprocess.run(argv, capture_output=True, text=True, check=False).stdout
    found = re.search(r"lsn: (\w+/\w+), prev \S+ desc: (?:CHECKPOINT_SHUTDOWN|OVERWRITE_CONTRECORD)", said)
    return position(found[1]) if found else ALL


def salvaged(target: LabTarget, kept: Iterable[Path], drill: int) -> Found:
    """Every copy salvaged against the leader."""
    dsn = make_conninfo(target.endpoint("direct").client_conninfo(), user="salvager", password="salvager")
    rows, read_to, undecided, number = set[Key](), 0, list[str](), 0
    for path in kept:
        chosen, number = plan(path, dsn, None, target.blueprint.postgres_bin), number + 1
        if chosen.spans:
            with tempfile.TemporaryDirectory(prefix="walproof-salvage-true-", dir=state_folder()) as folder:
                os.chmod(folder, 0o711)
                tree = run(chosen, dsn, Path(folder) / "out", lambda _: None)
                rows.update(ledger_rows(Path(folder) / "out", drill))
                apply(target, tree["databases"])
            undecided += tree["undecided"]
            read_to = max(read_to, min(position(tree["wal_read_to"]), crashed_at(chosen)))
    absent = len(rows - held(target, drill))
    return Found(frozenset(rows), read_to, tuple(undecided), number, absent)


def drilled(target: LabTarget, number: int, name: str, level: Level) -> tuple[str, Judged | None]:
    """One drill, and what is said of it; None where the ledger itself could not be read."""
    kept: dict[str, bytes] = {}

    def keep(file: str, content: str | bytes) -> None:
        if isinstance(content, bytes):
            kept[file] = content

    able = [one for one in IN_STORMS if one in ("kill", "isolate", "partition", "freeze", "switchover", "kill-member")]
    storm = drawn(np.random.default_rng(number), able, 3) if name == "storm" else ()
    fault = STORM if storm else CATALOGUE[name]
    planned = PlannedDrill(number, fault, fault.victims[0], level, writers=8, storm=storm)
    drill = one_drill(Shell(target, lambda _: None, keep, number), planned)
    wait_for(Wait.CLUSTER_HEALTHY, lambda: target.observe().healthy, target.clock)
    said = f"drill {number}, {name} at {level}: {drill.verdict}"
    try:
        if history_name(number) not in kept:
            return f"{said}, no ledger: {drill.why}", None
        try:
            found = salvaged(target, copies(target), number)
        except Error as wrong:  # a refusal is an answer that found nothing, where there was something to find
            found = Found(frozenset(), ALL, (wrong.message,), len(copies(target)))
        done = judge(decode(kept[history_name(number)]), found)
        return f"{said}; copies {found.copies}; {done}; {'; '.join(found.undecided)}", done
    finally:
        for path in copies(target):
            shutil.rmtree(path)


def main(*, rounds: int = 6, port: int = 5870) -> int:
    """Rounds of drills on one lab of its own; exit code 0 where salvage and the ledger agree in each of at least 30."""
    done: list[Judged] = []
    # Room for a member's data directory and its copies; 1 GB of WAL is kept in each. The image is a sparse file.
    order = LabOrder(port=port, disk=Disk("image", size_bytes=6 << 30))
    with benchmark_lab("salvage-true", order) as blueprint:
        target = LabTarget(blueprint)
        wait_for(Wait.CLUSTER_HEALTHY, lambda: target.observe().healthy, target.clock)
        keeping(target)
        for number, (name, level) in enumerate(ROUND * rounds, 1):
            text, one = drilled(target, number, name, level)
            print(text, flush=True)
            done += [one] if one else []
    wrong = sum(one.wrong for one in done)
    code = judged("drills with a ledger", len(done), "at least 30", len(done) >= 30)
    code |= judged(
        "rows that the ledger calls lost", sum(one.lost for one in done), "above 0", any(d.lost for d in done)
    )
    code |= judged("rows that salvage found", sum(one.found for one in done), "above 0", any(d.found for d in done))
    print(f"of them in no server's WAL: {sum(one.unwritten for one in done)}")
    return code | judged("rows on which salvage and the ledger differ", wrong, "0", wrong == 0)


if __name__ == "__main__":
    command(main)
