"""Salvage after a drill: rows of its ledger on every disk that was copied before pg_rewind. The ledger judges."""

import csv
import os
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

from walproof.errors import Error
from walproof.lab.home import state_folder
from walproof.model.salvage import OldDisks, Salvaged
from walproof.salvaging.plan import plan
from walproof.salvaging.private_folder import private_folder
from walproof.salvaging.report import KEEP, Tree
from walproof.salvaging.salvage import run
from walproof.salvaging.timelines import position

_BEYOND_ANY = 1 << 62
"""A WAL position after every other: what was not read may have been written."""


def rewind_script(programs: Path) -> str:
    """The program that `salvage --keep` prints, for the pg_rewind of that folder."""
    script = KEEP[KEEP.index("    #!/bin/sh") : KEEP.index("Once it has")]
    return textwrap.dedent(script).replace("/usr/lib/postgresql/17/bin", str(programs))


def require_private_state() -> None:
    """A refusal where `salvaged` could write nowhere, before a drill runs."""
    with private_folder(state_folder()):
        pass


def salvaged(disks: OldDisks, drill: int, use: Callable[[Tree], object] = lambda _: None) -> Salvaged:
    """What every copy holds that the leader has not; `use` is told each report while its files are there, and returns
    True to have the copy read again. A refusal is a reason why there may be more.
    """
    rows, written_to, undecided, members = set[tuple[int, int]](), 0, list[str](), list[str]()
    for member, path in disks.copies():
        members.append(member)
        try:
            read_to, why = _read(disks, path, drill, rows, use)
        except Error as wrong:
            read_to, why = _BEYOND_ANY, [wrong.message]
        written_to = max(written_to, read_to)
        undecided += [f"{member}: {one}" for one in why]
    return Salvaged(frozenset(rows), written_to, tuple(undecided), tuple(dict.fromkeys(members)))


def _read(
    disks: OldDisks, path: Path, drill: int, rows: set[tuple[int, int]], use: Callable[[Tree], object]
) -> tuple[int, list[str]]:
    """Add the rows of one copy; how far its WAL was written before a crash, and what is undecided."""
    if path.suffix == ".unfinished":
        return _BEYOND_ANY, ["its disk was not copied to the end: is there space for a second one?"]
    dsn = disks.dsn()
    chosen = plan(path, dsn, None, disks.programs)
    if not chosen.spans:
        return 0, []
    while True:
        with tempfile.TemporaryDirectory(prefix="walproof-salvage-", dir=state_folder()) as folder:
            os.chmod(folder, 0o711)
            tree = run(chosen, dsn, Path(folder) / "out", lambda *_: None)
            rows.update(_ledger_rows(Path(folder) / "out", drill))
            if use(tree) is not True:
                return position(tree["wal_written_to"]), tree["undecided"]


def _ledger_rows(out: Path, drill: int) -> Iterator[tuple[int, int]]:
    for path in out.glob(f"*/{'[0-9]' * 6}_walproof.walproof_ledger.csv"):
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                if (row["walproof_version"], row["drill"]) == ("lost", str(drill)):
                    yield int(row["writer"]), int(row["number"])
