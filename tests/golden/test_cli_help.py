"""What `--help` says, of walproof and of every verb, as kept in help/; WALPROOF_RENEW=1 writes it anew."""

import os
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tests.fixtures.command_line import commands
from walproof.cli.main import walproof

KEPT = Path(__file__).parent / "help"


VERBS = dict(commands(walproof))


def _help(path: tuple[str, ...]) -> str:
    result = CliRunner(env={"COLUMNS": "80"}).invoke(walproof, [*path, "--help"], prog_name="walproof")
    assert result.exit_code == 0, result.output
    return "\n".join(line.rstrip() for line in result.output.splitlines()) + "\n"


def _words(text: str) -> list[str]:
    """Words, not line ends: click has wrapped differently from version to version.

    And without -h: click keeps the help option of a command's first call, which other tests make without its group.
    """
    return text.replace("-h, --help", "--help").split()


@pytest.mark.parametrize("path", VERBS, ids=lambda path: "-".join(path) or "walproof")
def test_help_is_as_kept(path: tuple[str, ...]) -> None:
    kept = KEPT / f"{'-'.join(path) or 'walproof'}.txt"
    shown = _help(path)
    if os.environ.get("WALPROOF_RENEW"):
        KEPT.mkdir(exist_ok=True)
        kept.write_text(shown, "utf-8")
    assert _words(shown) == _words(kept.read_text("utf-8")), "WALPROOF_RENEW=1 keeps the new words"


def test_no_help_is_kept_of_verbs_that_are_gone() -> None:
    assert {file.stem for file in KEPT.glob("*.txt")} == {"-".join(path) or "walproof" for path in VERBS}


@pytest.mark.parametrize("path", VERBS, ids=lambda path: "-".join(path) or "walproof")
def test_every_option_says_what_it_does_in_a_sentence(path: tuple[str, ...]) -> None:
    command = VERBS[path]
    assert (command.help or "").split("\n\n")[0].rstrip()[-1] in ".:", command.help
    for option in command.params:
        if isinstance(option, click.Option):
            words = (option.help or "").split("  [default:")[0]
            assert words.endswith((".", "…")), f"{option.opts}: {words!r}"
