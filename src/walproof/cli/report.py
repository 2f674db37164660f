"""`walproof report`: a record as tables, page, Markdown, CSV or JSON; several records side by side."""

import webbrowser
from collections.abc import Sequence
from pathlib import Path

import click
import cloup
from cloup.constraints import mutually_exclusive

from walproof.cli import options as opt
from walproof.cli.console import print_json, print_tables, write_file
from walproof.cli.groups import Command
from walproof.errors import MachineError, UsageError
from walproof.model.units import counted
from walproof.pricing.require import Required, exit_code, parse_requirements, required, required_as_json
from walproof.records.reader import Record, read
from walproof.reporting.outline import Outline


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
) -> int:
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
        from walproof.reporting.markdown import markdown

        click.echo(markdown(_outline(found)), nl=False)
    elif as_csv:
        from walproof.reporting.table_csv import table_csv

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
        raise UsageError("--require is decided by one record", "walproof report RECORD --require 'on>=0.9@16'")
    return required(requirements, price_table(found[0].events)) if requirements else ()


def _rejudged(found: Sequence[Record], *, page: bool, text: bool, as_json: bool) -> int:
    from walproof.cli.rejudge import rejudge

    if len(found) > 1 or page or text:
        raise UsageError("--rejudge prints its own answer, for one record", "walproof report RECORD --rejudge")
    return rejudge(found[0], as_json=as_json)


def _outline(found: Sequence[Record]) -> Outline:
    from walproof.reporting.comparison import compared
    from walproof.reporting.compose import composed

    return composed(found[0]) if len(found) == 1 else compared(found)


def _write_page(name: str, found: Sequence[Record], *, opened: bool) -> None:
    from walproof.reporting.html import page

    write_file(name, page(_outline(found)), "name a writable place with --html", [r.directory for r in found])
    if name != "-":
        click.echo(f"page: {name}", err=True)
    if opened and not webbrowser.open(Path(name).absolute().as_uri()):
        click.echo(f"no browser could be started here; open {Path(name).absolute()}", err=True)


def _write_histograms(directory: Path, found: Sequence[Record]) -> None:
    from walproof.reporting.hdr_log import histogram_logs

    if len(found) > 1:
        raise UsageError("--histograms writes those of one record", "walproof report RECORD --histograms DIR")
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
    from walproof.reporting.as_json import outline_json, record_json

    trees = [record_json(r.events, str(r.directory), r.notices) for r in found]
    return trees[0] if len(trees) == 1 else {"records": trees, "comparison": outline_json(_outline(found))}


def _print_tables(found: Sequence[Record]) -> None:
    from walproof.reporting.terminal import conclusion, outline_tables, tables

    for record in found:
        for notice in record.notices:
            click.echo(f"{record.directory}: {notice}", err=True)
    if len(found) > 1:
        outline = _outline(found)
        print_tables(" ".join(outline.sentences), outline_tables(outline))
    else:
        print_tables(conclusion(found[0].events), tables(found[0].events))
