"""walproof report: a record as tables, page, Markdown, CSV or JSON; several records side by side. No decisions."""

import json
import webbrowser
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console

from walproof.errors import MachineError, UsageError
from walproof.records.reader import Record, read
from walproof.reporting.outline import Outline


@click.command()
@click.argument("records", nargs=-1, required=True, metavar="RECORD…")
@click.option("--html", "html_file", metavar="FILE", help="Write one self-contained page; - is standard output.")
@click.option("--open", "opened", is_flag=True, help="Open the page in the browser (RECORD/report.html by default).")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown, for a pull request.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, a number a row.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def report(
    records: tuple[str, ...], html_file: str | None, opened: bool, as_markdown: bool, as_csv: bool, as_json: bool
) -> int:
    """A record as tables, a page, Markdown, JSON or CSV; several records side by side: what changed, is it real."""
    if as_markdown + as_csv + as_json + (html_file == "-") > 1:
        raise UsageError("only one thing can go to standard output", "choose one of --markdown, --csv, --json")
    found = [read(Path(name)) for name in records]
    page = html_file or (str(found[0].directory / "report.html") if opened else None)
    if page:
        _write_page(page, found, opened=opened and page != "-")
    if as_markdown:
        from walproof.reporting.markdown import markdown

        click.echo(markdown(_outline(found)), nl=False)
    elif as_csv:
        from walproof.reporting.table_csv import table_csv

        click.echo(table_csv((str(r.directory), r.events) for r in found), nl=False)
    elif as_json:
        click.echo(json.dumps(_as_object(found), allow_nan=False))
    elif not page:
        _show(found)
    return 0


def _outline(found: Sequence[Record]) -> Outline:
    from walproof.reporting.comparison import compared
    from walproof.reporting.compose import composed

    return composed(found[0]) if len(found) == 1 else compared(found)


def _write_page(name: str, found: Sequence[Record], *, opened: bool) -> None:
    from walproof.reporting.html import page

    text = page(_outline(found))
    if name == "-":
        click.echo(text, nl=False)
        return
    path = Path(name)
    try:
        path.write_text(text, "utf-8")
    except OSError as wrong:
        raise MachineError(f"cannot write {path}: {wrong.strerror}", "name a writable place with --html") from None
    click.echo(f"page: {path}", err=True)
    if opened and not webbrowser.open(path.resolve().as_uri()):
        click.echo(f"no browser could be started here; open {path.resolve()}", err=True)


def _as_object(found: Sequence[Record]) -> dict[str, object]:
    from walproof.reporting.as_json import outline_json, record_json

    told = [record_json(r.events, str(r.directory), r.notices) for r in found]
    return told[0] if len(told) == 1 else {"records": told, "comparison": outline_json(_outline(found))}


def _show(found: Sequence[Record]) -> None:
    from walproof.reporting.terminal import conclusion, outline_tables, tables

    console = Console()
    for record in found:
        for notice in record.notices:
            click.echo(f"{record.directory}: {notice}", err=True)
    if len(found) > 1:
        outline = _outline(found)
        console.print(" ".join(outline.sentences), style="bold", highlight=False, markup=False)
        for part in outline_tables(outline):
            console.print(part)
        return
    console.print(conclusion(found[0].events), style="bold", highlight=False, markup=False)
    for part in tables(found[0].events):
        console.print(part)
