"""`walproof salvage`: which commits a failover lost, and their rows, from the old primary's data directory."""

from functools import partial
from pathlib import Path

import click
import cloup
from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from walproof.cli import options as opt
from walproof.cli.options import Command
from walproof.errors import ExitCode, UsageError
from walproof.reporting.console_output import print_result, print_step, progress_bar
from walproof.salvaging.plan import plan
from walproof.salvaging.refusals import refused
from walproof.salvaging.report import KEEP, plan_tree, text
from walproof.salvaging.salvage import run
from walproof.salvaging.trial import tried
from walproof.targets.choose import choose
from walproof.targets.external import consent

_FOLDER = partial(click.Path, path_type=Path)


def _leader(target: str, differs: str | None) -> str:
    """The DSN of the target's leader, but for these words; it is open until the command ends."""
    try:
        words = conninfo_to_dict(differs or "")
    except ProgrammingError:
        raise refused("no-dsn") from None
    cluster = choose(target)
    click.get_current_context().call_on_close(cluster.close)
    of_leader = conninfo_to_dict(cluster.endpoint("direct").client_conninfo())
    if "user" in words:
        of_leader.pop("password", None)  # "": PGPASSWORD is that of the role which differs, perhaps
    return make_conninfo(**{name: str(word) for name, word in {**of_leader, **words}.items()})


@cloup.command(cls=Command)
@opt.group(
    "Servers",
    opt.option("--old", "DATA_DIRECTORY", "Of the old primary, stopped, or a snapshot of it.", type=_FOLDER()),
    opt.option("--new", "DSN", "The server that leads now; with --target what differs: user=salvager."),
    opt.option("--wal", "DIR", "An archive of WAL: segments and history files, not compressed.", type=_FOLDER()),
    opt.option("--bin", "DIR", "PostgreSQL's programs of the directory's major version.", type=_FOLDER()),
)
@opt.cluster(default="--new alone")
@opt.output(
    opt.option("--out", "DIR", "A new folder for the report and the copy.  [default: salvage]", type=_FOLDER()),
    opt.flag("--in-place", "Work in --old itself, a copy that you made: its files change. --out on the same disk."),
    opt.flag("--check", "Try the SQL on the new primary in a transaction that is rolled back; asks for --allow load."),
    opt.allow("load, existing-tables (fires triggers)"),
    opt.flag("--keep", "Print what to set so that the disk can be read after the next failover."),
    opt.dry_run,
)
def salvage(
    old: Path | None,
    new: str | None,
    target: str | None,
    wal: Path | None,
    bin: Path | None,
    in_place: bool,
    check: bool,
    allow: str | None,
    keep: bool,
    dry_run: bool,
    out: Path | None,
    as_json: bool,
) -> ExitCode:
    """Which commits a failover lost: from the old primary's disk, which is only read, as is the new primary.

    The report is --out/report.json too, and lost rows are CSV and SQL there. The disk is copied below --out meanwhile.
    """
    if keep:
        print_result({"keep": KEEP}, *KEEP.splitlines(), as_json=as_json)
        return ExitCode.HELD
    if old is not None and target is not None:
        new = _leader(target, new)
    if old is None or new is None:
        raise UsageError(
            f"--{'old' if old is None else 'new'} is missing", "walproof salvage --old DATA_DIRECTORY --new DSN"
        )
    allowed = consent.read(allow)
    if check and "load" not in allowed:
        raise refused("no-consent")
    chosen, folder = plan(old, new, wal, bin, in_place=in_place), out or Path("salvage")
    if in_place:
        print_step(f"WARNING: --in-place: files of {old} change, so it is no evidence any more")
    tree = {"dry_run": dry_run, **plan_tree(chosen)}
    if chosen.spans and not dry_run:
        trial = partial(tried, new, allowed, planned=chosen.primary) if check else None
        with progress_bar() as progress:
            tree |= run(chosen, new, folder, progress, trial)
    print_result(tree, *text(tree), as_json=as_json)
    return ExitCode.UNDECIDED if not chosen.spans or tree.get("undecided") else ExitCode.HELD
