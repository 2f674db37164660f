"""`walproof report`: a record as tables, page, Markdown, CSV or JSON; several records side by side.

With `--rejudge` every verdict is derived again from the kept history alone, and compared."""

import webbrowser
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import cloup
from cloup.constraints import mutually_exclusive

from walproof.cli import options as opt
from walproof.cli.options import Command
from walproof.errors import ExitCode, UsageError
from walproof.machine.untrusted import bounded, field, regular
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
from walproof.reporting.console_output import print_json, print_result, print_tables, write_file, write_files
from walproof.reporting.outline import Outline

_MOST_HISTORY = 1 << 30


def rejudge(records: Sequence[Record], *, alone: bool, as_json: bool) -> ExitCode:
    """Judge every drill again; HELD when every verdict is the same, byte for byte, BROKEN when one is not.

    `alone`: no other output is asked for. UsageError when a history is damaged, or none was kept.
    """
    record, *others = records
    if others or not alone:
        raise UsageError("--rejudge needs one record and no other output", "walproof report RECORD --rejudge")
    drills = [(event, _judged_again(record, event)) for event in record.of(DrillDone)]
    judged = [(event, now) for event, now in drills if now is not None]
    if not judged:
        raise UsageError(
            f"{record.directory} keeps no histories, so nothing can be judged again",
            "run walproof prove again: the record of its drills keeps them",
        )
    differing = [(event.drill, now.drill) for event, now in judged if encode(event) != encode(now)]
    tree = {
        "record": str(record.directory),
        "drills": [
            {
                "number": event.drill.number,
                "recorded": str(event.drill.verdict),
                "rejudged": None if now is None else str(now.drill.verdict),
                "same": now is not None and encode(event) == encode(now),
            }
            for event, now in drills
        ],
    }
    same, verdicts = len(judged) - len(differing), counted(len(judged), "verdict")
    lines = [f"{same} of {verdicts} derived again from the kept histories: the same to the byte."]
    if len(judged) < len(drills):
        lines.append(f"{counted(len(drills) - len(judged), 'drill')} ran no load and kept no history.")
    print_result(tree, *lines, *(line for pair in differing for line in _difference(*pair)), as_json=as_json)
    return ExitCode.BROKEN if differing else ExitCode.HELD


def _judged_again(record: Record, event: DrillDone) -> DrillDone | None:
    """The drill judged from its kept history; None where none was kept."""
    path = record.directory / FILES / history_name(event.drill.number)
    try:
        with regular(record.directory, path) as file:
            now = judge(decode(bounded(file, _MOST_HISTORY))).drill
    except OSError:  # not there, a link, or no file
        return None
    except UsageError as wrong:
        raise UsageError(f"{path}: {wrong.message}", wrong.hint) from None
    # As it is read from a record: without control characters, no matter which program wrote the history.
    again, _ = decode_event(encode(DrillDone(event.at, now)))
    assert isinstance(again, DrillDone)
    return again


def _difference(before: Drill, now: Drill) -> Iterator[str]:
    """What differs between two drills, a line each."""
    yield f"drill {before.number} was {before.verdict}: {before.why}"
    yield f"  now it is {now.verdict}: {now.why}"
    for name in Drill.__dataclass_fields__:
        old, new = getattr(before, name), getattr(now, name)
        if name not in ("verdict", "why") and repr(old) != repr(new):
            yield f"  {name}: {old} → {new}"


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
    loaded = [read(Path(name)) for name in records]
    if rejudging:
        return rejudge(loaded, alone=not (html_file or opened or as_markdown or as_csv), as_json=as_json)
    answers = _required(loaded, require)
    page = html_file or (str(loaded[0].directory / "report.html") if opened else None)
    if page:
        _write_page(page, loaded, opened=opened and page != "-")
    if histograms:
        _write_histograms(histograms, loaded)
    if as_markdown:
        from walproof.reporting.html_and_markdown import markdown

        click.echo(markdown(_outline(loaded)), nl=False)
    elif as_csv:
        from walproof.reporting.json_csv_hdrhistogram import table_csv

        click.echo(table_csv((str(r.directory), r.events) for r in loaded), nl=False)
    elif as_json:
        asked = {"requirements": required_as_json(answers)} if answers else {}
        print_json({**_records_json(loaded), **asked})
    elif not page and not histograms:
        _print_tables(loaded)
    for one in () if as_json else answers:
        click.echo(field(one.text), err=as_markdown or as_csv or html_file == "-")
    return exit_code(answers)


def _required(records: Sequence[Record], text: str | None) -> tuple[Required, ...]:
    from walproof.pricing.estimates import price_table

    requirements = parse_requirements(text)
    if requirements and len(records) > 1:
        raise UsageError("--require needs one record", "walproof report RECORD --require 'on>=0.9@16'")
    return required(requirements, price_table(records[0].events)) if requirements else ()


def _outline(records: Sequence[Record]) -> Outline:
    from walproof.reporting.comparison import compared
    from walproof.reporting.record_outline import composed

    return composed(records[0]) if len(records) == 1 else compared(records)


def _write_page(name: str, records: Sequence[Record], *, opened: bool) -> None:
    from walproof.reporting.html_and_markdown import page

    write_file(name, page(_outline(records)), "name a writable place with --html", [r.directory for r in records])
    if name != "-":
        click.echo(f"page: {name}", err=True)
    if opened and not webbrowser.open(Path(name).absolute().as_uri()):
        click.echo(f"no browser could be started here; open {Path(name).absolute()}", err=True)


def _write_histograms(directory: Path, records: Sequence[Record]) -> None:
    from walproof.reporting.json_csv_hdrhistogram import histogram_logs

    if len(records) > 1:
        raise UsageError("--histograms needs one record", "walproof report RECORD --histograms DIR")
    logs = histogram_logs(records[0].events)
    if not logs:
        raise UsageError(f"{records[0].directory} holds no latencies", "give the record of a walproof price")
    write_files(directory, logs, "name a writable place with --histograms", [records[0].directory])
    click.echo(f"{counted(len(logs), 'histogram log')}: {directory}", err=True)


def _records_json(records: Sequence[Record]) -> dict[str, object]:
    from walproof.reporting.json_csv_hdrhistogram import outline_json, record_json

    trees = [record_json(r.events, str(r.directory), r.notices) for r in records]
    return trees[0] if len(trees) == 1 else {"records": trees, "comparison": outline_json(_outline(records))}


def _print_tables(records: Sequence[Record]) -> None:
    from walproof.reporting.conclusion import conclusion
    from walproof.reporting.record_outline import results
    from walproof.reporting.terminal import tables

    for record in records:
        for notice in record.notices:
            click.echo(field(f"{record.directory}: {notice}"), err=True)
    if len(records) > 1:
        outline = _outline(records)
        print_tables(" ".join(outline.sentences), tables(outline.sections))
    else:
        print_tables(conclusion(records[0].events), tables(results(records[0].events)))
