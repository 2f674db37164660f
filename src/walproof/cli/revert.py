"""`walproof revert`: reverts what an interrupted run or apply had changed, from its journal."""

from pathlib import Path

import cloup

from walproof.cli import options as opt
from walproof.cli.console import print_result
from walproof.cli.groups import Command
from walproof.cli.journals import NAME, Layer, applied_folder, journal_of_apply
from walproof.errors import UsageError
from walproof.load.work_directory import remove_left
from walproof.model.units import counted
from walproof.records.journal import Journal
from walproof.records.layout import record_directory
from walproof.targets.choose import choose, is_external


@cloup.command(cls=Command)
@cloup.argument("record", required=False, metavar="[RECORD]")
@opt.cluster(default="as the journal says")
@opt.output()
def revert(record: str | None, target: str | None, as_json: bool) -> int:
    """Revert what an interrupted run had changed; without RECORD every record here and every interrupted apply."""
    remove_left()
    done: list[tuple[str, Path, int, list[str]]] = []
    for path, complete in _journals(record):
        journal = Layer(Journal(path), complete=complete)
        for name in dict.fromkeys(c.target for c in journal.pending()):
            pending = len(journal.pending(name))
            cluster = choose(target or name)
            cluster.name = name
            done.append((name, path, pending, cluster.revert(journal)))
    if target is not None and is_external(target) and not done:
        # What ended runs left there is found by its label, without a journal.
        cluster = choose(target)
        kept = journal_of_apply(cluster.name)
        done.append((cluster.name, kept.path, 0, cluster.revert(Layer(kept, complete=False))))
    print_result(
        {"reverted": [{"target": n, "journal": str(p), "changes": c, "left": left} for n, p, c, left in done]},
        *(
            line
            for name, _, pending, left in done
            for line in (f"reverted {counted(pending, 'change')} on {name}", *(f"  {sentence}" for sentence in left))
        ),
        *(() if done else ("nothing to revert",)),
        as_json=as_json,
    )
    return 1 if any(left for *_, left in done) else 0


def _journals(record: str | None) -> list[tuple[Path, bool]]:
    """Journals with changes that may be pending; a complete application of apply stays in effect."""
    if record is not None:
        path = record_directory(Path(record)) / NAME
        if not path.exists():
            raise UsageError(
                f"{record} holds no journal: its run changed nothing on a cluster walproof did not start",
                "nothing to do",
            )
        return [(path, False)]
    return [(p, False) for p in (*sorted(Path("records").glob(f"*/{NAME}")), *sorted(applied_folder().glob("*.jsonl")))]
