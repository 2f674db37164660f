"""`walproof restore`: puts back what an interrupted run or apply had changed, from its journal."""

import json
from pathlib import Path

import click

from walproof.cli.journals import NAME, Layer, applied_folder
from walproof.errors import UsageError
from walproof.records.journal import Journal
from walproof.records.layout import record_directory
from walproof.targets.choose import choose


@click.command()
@click.argument("record", required=False, metavar="[RECORD]")
@click.option(
    "--target", metavar="WHERE", default=None, help="How to reach it now, where the journal's way will not do."
)
@click.option("--json", "json_wanted", is_flag=True, help="One JSON object on standard output, nothing else.")
def revert(record: str | None, target: str | None, json_wanted: bool) -> int:
    """Put back what an interrupted run had changed; without RECORD every record here and every apply is looked at."""
    done: list[dict[str, object]] = []
    for path, complete in _journals(record):
        journal = Layer(Journal(path), complete=complete)
        for name in dict.fromkeys(c.target for c in journal.pending()):
            count = len(journal.pending(name))
            place = choose(target or name)
            place.name = name
            left = place.revert(journal)
            done.append({"target": name, "journal": str(path), "undone": count, "left": left})
    if json_wanted:
        click.echo(json.dumps({"restored": done}))
    elif not done:
        click.echo("nothing to put back")
    for one in done if not json_wanted else []:
        click.echo(f"put back {one['undone']} changes on {one['target']}")
        for sentence in one["left"] if isinstance(one["left"], list) else []:
            click.echo(f"  {sentence}")
    return 1 if any(one["left"] for one in done) else 0


def _journals(record: str | None) -> list[tuple[Path, bool]]:
    """Journals to look at; a complete application of apply stays in effect."""
    if record is not None:
        path = record_directory(Path(record)) / NAME
        if not path.exists():
            raise UsageError(
                f"{record} holds no journal: its run changed nothing on a cluster of yours", "nothing to do"
            )
        return [(path, False)]
    return [(p, False) for p in (*sorted(Path("records").glob(f"*/{NAME}")), *sorted(applied_folder().glob("*.jsonl")))]
