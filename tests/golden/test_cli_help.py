"""What `--help` says, of walproof and of every verb, as kept in help.txt; WALPROOF_RENEW=1 writes it anew."""

import os
from pathlib import Path

import click
from click.testing import CliRunner

from tests.fixtures.command_line import VERBS
from tests.fixtures.tiers import each
from walproof.cli.main import walproof

KEPT = Path(__file__).with_name("help.txt")


def _help(path: tuple[str, ...]) -> str:
    result = CliRunner(env={"COLUMNS": "80"}).invoke(walproof, [*path, "--help"], prog_name="walproof")
    assert result.exit_code == 0, result.output
    return "\n".join(line.rstrip() for line in result.output.splitlines())


def _words(text: str) -> list[str]:
    """Words, not line ends: click has wrapped differently from version to version.

    And without -h: click keeps the help option of a command's first call, which other tests make without its group.
    """
    return text.replace("-h, --help", "--help").split()


def test_help_of_every_command_is_as_kept() -> None:
    shown = {f"$ walproof {' '.join((*path, '--help'))}": _help(path) for path in VERBS}
    if os.environ.get("WALPROOF_RENEW"):
        KEPT.write_text("".join(f"{command}\n{text}\n\n" for command, text in shown.items()), "utf-8")
    pages = [page.partition("\n") for page in ("\n" + KEPT.read_text("utf-8")).split("\n$ ")[1:]]
    kept = {f"$ {command}": _words(text) for command, _, text in pages}
    assert {command: _words(text) for command, text in shown.items()} == kept, "WALPROOF_RENEW=1 keeps the new words"


@each(VERBS.items())
def test_every_option_says_what_it_does_in_a_sentence(path: tuple[str, ...], command: click.Command) -> None:
    assert (command.help or "").split("\n\n")[0].rstrip()[-1] in ".:", command.help
    for option in command.params:
        if isinstance(option, click.Option):
            words = (option.help or "").split("  [default:")[0]
            assert words.endswith((".", "…")), f"{option.opts}: {words!r}"
