"""`walproof report`: a record as tables, page, Markdown, CSV or JSON; several records side by side.

With `--rejudge` every verdict is derived again from the kept history alone, and compared."""

import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import cloup
from cloup.constraints import mutually_exclusive

from walproof.cli import options as opt
from walproof.cli.options import Command
from walproof.errors import ExitCode, MachineError, UsageError
from walproof.machine.untrusted import bounded, regular
from walproof.model.drill import Drill
from walproof.model.event import DrillDone
from walproof.model.units import counted
from walproof.pricing.results_and_gate import Required, exit_code, parse_requirements, required, required_as_json
from walproof.proving.history import decode, history_name
from walproof.proving.judge import judge
from walproof.records.codec import decode as decode_event
from walproof.records.codec import encode
from walproof.records.layout import FILES
from walproof.records.reader import Record, read
from walproof.reporting.console_output import print_json, print_result, print_tables, write_file
from walproof.reporting.outline import Outline

_MOST_HISTORY = 1 << 30


@dataclass(frozen=True, slots=True)
class Rejudged:
    """One drill of the record and what its history says now; None where no history was kept."""

    recorded: Drill
    now: Drill | None
    same: bool


def rejudged(record: Record) -> list[Rejudged]:
    """Every drill of the record, judged again; UsageError when a history is damaged."""
    return [_one(record, event) for event in record.of(DrillDone)]


def _one(record: Record, event: DrillDone) -> Rejudged:
    path = record.directory / FILES / history_name(event.drill.number)
    try:
        with regular(record.directory, path) as file:
            now = judge(decode(bounded(file, _MOST_HISTORY))).drill
    except OSError:  # not there, a link, or no file
        return Rejudged(event.drill, None, same=False)
    except UsageError as wrong:
        raise UsageError(f"{path}: {wrong.message}", wrong.hint) from None
    # As it is read from a record: without control characters, whoever wrote the history.
    again, _ = decode_event(encode(DrillDone(event.at, now)))
    assert isinstance(again, DrillDone)
    return Rejudged(event.drill, again.drill, encode(event) == encode(again))


def rejudge(record: Record, *, as_json: bool) -> ExitCode:
    """Print what comes out; HELD when every verdict is the same, byte for byte, BROKEN when one is not."""
    found = rejudged(record)
    judged = [one for one in found if one.now is not None]
    if not judged:
        raise UsageError(
            f"{record.directory} keeps no histories, so nothing can be judged again",
            "run walproof prove again: the record of its drills keeps them",
        )
    print_result(_tree(record, found), *_lines(found, judged), as_json=as_json)
    return ExitCode.HELD if all(one.same for one in judged) else ExitCode.BROKEN


def _lines(found: list[Rejudged], judged: list[Rejudged]) -> list[str]:
    same = sum(one.same for one in judged)
    verdicts = counted(len(judged), "verdict")
    lines = [f"{same} of {verdicts} derived again from the kept histories: the same to the byte."]
    if len(judged) < len(found):
        lines.append(f"{counted(len(found) - len(judged), 'drill')} ran no load and kept no history.")
    for one in judged:
        if not one.same and one.now is not None:
            lines.append(f"drill {one.recorded.number} was {one.recorded.verdict}: {one.recorded.why}")
            lines.append(f"  now it is {one.now.verdict}: {one.now.why}")
            lines += [f"  {name}: {before} → {after}" for name, before, after in differences(one.recorded, one.now)]
    return lines


def differences(before: Drill, now: Drill) -> list[tuple[str, Any, Any]]:
    """The fields in which two drills differ, but for verdict and sentence."""
    names = [name for name in Drill.__dataclass_fields__ if name not in ("verdict", "why")]
    pairs = ((name, getattr(before, name), getattr(now, name)) for name in names)
    return [(name, old, new) for name, old, new in pairs if repr(old) != repr(new)]


def _tree(record: Record, found: list[Rejudged]) -> dict[str, Any]:
    return {
        "record": str(record.directory),
        "drills": [
            {
                "number": one.recorded.number,
                "recorded": str(one.recorded.verdict),
                "rejudged": None if one.now is None else str(one.now.verdict),
                "same": one.same,
            }
            for one in found
        ],
    }


@cloup.command(cls=Command)
@cloup.argument("records", nargs=-1, required=True, metavar="RECORD…")
@opt.group(
    "Page",
    opt.option("--html html_file", "FILE", "Write one self-contained page; - is standard output."),
    opt.flag("--open opened", "Open the page in the browser (default RECORD/report.html)."),
)
@opt.group(
    "Files",
    opt.option(
        "--histograms", "DIR", "Write latencies as HdrHistogram logs, one an arm.", type=click.Path(path_type=Path)
    ),
)
@opt.group(
    "Verdicts",
    opt.flag("--rejudge rejudging", "Derive every verdict again from the kept histories; exit 1 if one differs."),
)
@opt.group(
    "Requirements",
    opt.ratios_required,
)
@opt.group(
    "Text on standard output",
    opt.flag("--markdown as_markdown", "Markdown, for a pull request."),
    opt.flag("--csv as_csv", "CSV, one number per row."),
    opt.json_output,
    constraint=mutually_exclusive,
)
def report(
    records: tuple[str, ...],
    html_file: str | None,
    opened: bool,
    rejudging: bool,
    require: str | None,
    histograms: Path | None,
    as_markdown: bool,
    as_csv: bool,
    as_json: bool,
) -> ExitCode:
    """A record as tables, a page, Markdown, JSON or CSV; several records side by side: what changed, is it real."""
    if html_file == "-" and (as_markdown or as_csv or as_json):
        raise UsageError("only one thing can go to standard output", "name a file for --html")
    found = [read(Path(name)) for name in records]
    if rejudging:
        return _rejudged(found, page=html_file is not None or opened, text=as_markdown or as_csv, as_json=as_json)
    answers = _required(found, require)
    page = html_file or (str(found[0].directory / "report.html") if opened else None)
    if page:
        _write_page(page, found, opened=opened and page != "-")
    if histograms:
        _write_histograms(histograms, found)
    if as_markdown:
        from walproof.reporting.html_and_markdown import markdown

        click.echo(markdown(_outline(found)), nl=False)
    elif as_csv:
        from walproof.reporting.json_csv_hdrhistogram import table_csv

        click.echo(table_csv((str(r.directory), r.events) for r in found), nl=False)
    elif as_json:
        asked = {"requirements": required_as_json(answers)} if answers else {}
        print_json({**_records_json(found), **asked})
    elif not page and not histograms:
        _print_tables(found)
    for one in () if as_json else answers:
        click.echo(one.text, err=as_markdown or as_csv or html_file == "-")
    return exit_code(answers)


def _required(found: Sequence[Record], text: str | None) -> tuple[Required, ...]:
    from walproof.pricing.estimates import price_table

    requirements = parse_requirements(text)
    if requirements and len(found) > 1:
        raise UsageError("--require needs one record", "walproof report RECORD --require 'on>=0.9@16'")
    return required(requirements, price_table(found[0].events)) if requirements else ()


def _rejudged(found: Sequence[Record], *, page: bool, text: bool, as_json: bool) -> ExitCode:
    if len(found) > 1 or page or text:
        raise UsageError("--rejudge needs one record and no other output", "walproof report RECORD --rejudge")
    return rejudge(found[0], as_json=as_json)


def _outline(found: Sequence[Record]) -> Outline:
    from walproof.reporting.comparison import compared
    from walproof.reporting.record_outline import composed

    return composed(found[0]) if len(found) == 1 else compared(found)


def _write_page(name: str, found: Sequence[Record], *, opened: bool) -> None:
    from walproof.reporting.html_and_markdown import page

    write_file(name, page(_outline(found)), "name a writable place with --html", [r.directory for r in found])
    if name != "-":
        click.echo(f"page: {name}", err=True)
    if opened and not webbrowser.open(Path(name).absolute().as_uri()):
        click.echo(f"no browser could be started here; open {Path(name).absolute()}", err=True)


def _write_histograms(directory: Path, found: Sequence[Record]) -> None:
    from walproof.reporting.json_csv_hdrhistogram import histogram_logs

    if len(found) > 1:
        raise UsageError("--histograms needs one record", "walproof report RECORD --histograms DIR")
    logs = histogram_logs(found[0].events)
    if not logs:
        raise UsageError(f"{found[0].directory} holds no latencies", "give the record of a walproof price")
    hint = "name a writable place with --histograms"
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MachineError(f"{directory} cannot be created: {error.strerror}", hint) from None
    for name, text in logs.items():
        write_file(directory / name, text, hint, [found[0].directory])
    click.echo(f"{counted(len(logs), 'histogram log')}: {directory}", err=True)


def _records_json(found: Sequence[Record]) -> dict[str, object]:
    from walproof.reporting.json_csv_hdrhistogram import outline_json, record_json

    trees = [record_json(r.events, str(r.directory), r.notices) for r in found]
    return trees[0] if len(trees) == 1 else {"records": trees, "comparison": outline_json(_outline(found))}


def _print_tables(found: Sequence[Record]) -> None:
    from walproof.reporting.conclusion import conclusion
    from walproof.reporting.record_outline import results
    from walproof.reporting.terminal import tables

    for record in found:
        for notice in record.notices:
            click.echo(f"{record.directory}: {notice}", err=True)
    if len(found) > 1:
        outline = _outline(found)
        print_tables(" ".join(outline.sentences), tables(outline.sections))
    else:
        print_tables(conclusion(found[0].events), tables(results(found[0].events)))
