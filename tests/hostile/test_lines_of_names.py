"""A name that holds an end of a line forges no line of a report, on a terminal or in a table."""

from pathlib import Path

import pytest

from tests.fixtures.command_line import Run, walproof
from tests.fixtures.tiers import each
from walproof.machine.untrusted import field
from walproof.model.topology import ClusterView, MemberView, Role
from walproof.reporting.console_output import console, print_status
from walproof.reporting.outline import Cell

__all__ = ["walproof"]
ENDS = ("\n", "\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029", "\x1b[2J", "\u202e", "\u200b")
FORGED = "error  forged"


@each(ENDS)
def test_a_name_is_one_line_of_every_table(end: str, capsys: pytest.CaptureFixture[str]) -> None:
    name = f"n1{end}{FORGED}"
    assert Cell(name).text == field(name) == f"n1\ufffd{end[1:]}{FORGED}"
    print_status(ClusterView(0.0, (MemberView(name, Role.LEADER, "running"),), name, name), console())
    assert not [line for line in capsys.readouterr().out.splitlines() if line.startswith(FORGED)]


@each(["\\n", "\\r", "\\v", "\\f", "\\x85", "\\u2028", "\\u2029", "\\x1b[2J", "\\u202e"])
def test_a_cluster_of_a_file_forges_no_line_of_the_doctor(end: str, walproof: Run, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        'apiVersion: postgresql.cnpg.io/v1\nkind: Cluster\nmetadata: {name: "pg'
        f'{end}{FORGED}"}}\nspec:\n  instances: 2\n  postgresql: {{enableAlterSystem: true}}\n'
    )
    out = walproof("doctor", "c.yaml")[1]
    assert "enableAlterSystem" in out
    assert not [line for line in out.splitlines() if line.startswith(FORGED)]
