"""No name begins a line of its own in any report: doctor, price, prove, observe, forecast, in each of their forms."""

from io import StringIO
from xml.etree import ElementTree

import pytest
from rich.console import Console

from tests.fixtures.tiers import each
from walproof.advising.doctor import outputs
from walproof.advising.doctor.finding import Examination, Finding, Severity
from walproof.model.declared import Place
from walproof.model.junit import Case, junit
from walproof.reporting import console_output
from walproof.reporting.html_and_markdown import markdown, page
from walproof.reporting.outline import Cell, Column, Outline, Prose, Section, Table
from walproof.reporting.terminal import tables

ENDS = ("\n", "\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029", "\n\x1b[2J", "\n\u202e")
FORGED = "FORGED"


def begun(text: str) -> list[str]:
    """The lines that a name begins."""
    return [line for line in text.splitlines() if line.lstrip(" \x1b[0123456789;m\u202e|>-*").startswith(FORGED)]


@each(ENDS)
def test_no_name_begins_a_line_of_an_outline(end: str) -> None:
    """Of every verb's report: all of them are outlines, whose every text is a name here."""
    name = f"n1{end}{FORGED}"
    table = Table("k", f"of {name}", (Column(f"c {name}"),), ((Cell(name),),))
    blocks = (Prose((f"p {name}",)), Prose((f"p {name}", name)), Prose((f"c {name}",), code=True), table)
    section = Section("s", f"t {name}", f"i {name}", blocks)
    outline = Outline(f"t {name}", (("fact", name),), (f"s {name}",), (f"x {name}",), (section,))
    assert not begun(markdown(outline)) and not begun(page(outline))
    made = StringIO()
    Console(file=made, width=200).print(*tables(outline.sections))
    assert not begun(made.getvalue())


@each(ENDS)
def test_no_name_begins_a_line_on_the_terminal(end: str, capsys: pytest.CaptureFixture[str]) -> None:
    name = f"n1{end}{FORGED}"
    grid = console_output.plain_table("a")
    grid.add_row(name)
    console_output.print_tables(f"lost on {name}", (grid,), f"seen {name}")
    console_output.print_step(f"asking {name}")
    printed = capsys.readouterr()
    assert FORGED in printed.out and FORGED in printed.err
    assert not begun(printed.out) and not begun(printed.err)


@each(ENDS)
def test_no_name_begins_a_line_for_programs_of_ci(end: str) -> None:
    name = f"n1{end}{FORGED}"
    finding = Finding(
        id="fsync-off", severity=Severity.ERROR, title=f"title {name}", member=f"m {name}", evidence=f"saw {name}",
        where="", could_cost="cost", fix="fix", source="url", place=Place(f"f {name}", 1, 1),
    )  # fmt: skip
    examinations, skipped = [Examination(f"c {name}", (finding,))], {Place(f"g {name}", 0): f"why {name}"}
    github = outputs.as_github(examinations, skipped)
    assert not begun(github) and all(line.startswith("::") for line in github.splitlines())
    drill = junit("p", [Case(name, name, name, "failure", name), Case("s", "c", "d", "system-out", "", f"a {name}")])
    for xml in (outputs.as_junit(examinations, skipped), drill):
        tree = ElementTree.fromstring(xml)
        assert not [one for node in tree.iter() for value in node.attrib.values() for one in begun(value)]
    assert not begun(outputs.as_junit(examinations, skipped))


@each(ENDS)
def test_no_name_begins_a_line_that_a_verb_prints(end: str, capsys: pytest.CaptureFixture[str]) -> None:
    console_output.print_result({}, f"reverted on x{end}{FORGED}", "another line", as_json=False)
    out = capsys.readouterr().out
    assert not begun(out)
    assert len(out.splitlines()) == 2
    assert "\u202e" not in out
