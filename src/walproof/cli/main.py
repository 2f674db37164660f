"""The command `walproof`: verbs are imported when called; the outermost edge, where errors become exit codes."""

import atexit
import os
import sys

import click
import cloup

from walproof.cli.groups import SETTINGS, Group, section
from walproof.errors import Error

SECTIONS = (
    section(
        "Start here",
        "walproof.cli.{}",
        demo="A real cluster, its prices, two drills, one conclusion.",
        lab="A real cluster on this machine: up, status, faults, down.",
    ),
    section(
        "Measure",
        "walproof.cli.{}",
        price="What each commit level costs.",
        prove="What each commit level survives.",
        study="Published studies, reproduced side by side.",
    ),
    section(
        "Read",
        "walproof.cli.{}",
        report="A record as tables, a page, Markdown, JSON or CSV.",
        watch="The cluster live: page, terminal or metrics.",
        doctor="What is wrong with a cluster's durability.",
    ),
    section(
        "Configure",
        "walproof.cli.{}",
        advise="Which configuration to run.",
        apply="Apply a recommendation, or undo it.",
        revert="Revert what an interrupted run had changed.",
    ),
)


@cloup.group(cls=Group, context_settings=SETTINGS, sections=SECTIONS)
@click.version_option(package_name="walproof")
def walproof() -> None:
    """Prove what your PostgreSQL commits survive, and know what it costs."""


def _print_error(message: str, hint: str) -> None:
    """One sentence on standard error, and what to do next."""
    click.echo(f"walproof: {message}", err=True)
    if hint:
        click.echo(f"  hint: {hint}", err=True)


def _as_ordinary_user(argv: list[str]) -> None:
    """Labs of ordinary users live in namespaces of their own: go on in there where the command means the lab."""
    from walproof.lab import rootless

    atexit.register(rootless.step_outside)
    rootless.step_inside(argv)


def main(argv: list[str] | None = None) -> None:
    """Run a verb. Exit codes: 0 held, 1 broken or a gate exceeded, 2 usage, 3 environment, 4 undecided, 130 Ctrl-C."""
    try:
        if os.geteuid() != 0:
            _as_ordinary_user(sys.argv[1:] if argv is None else argv)
        code = walproof.main(args=argv, prog_name="walproof", standalone_mode=False)
    except Error as error:
        _print_error(error.message, error.hint)
        code = error.exit_code
    except click.UsageError as wrong:
        _print_error(
            " ".join(wrong.format_message().split()), f"{wrong.ctx.command_path if wrong.ctx else 'walproof'} --help"
        )
        code = 2
    except (KeyboardInterrupt, click.Abort):
        click.echo("walproof: interrupted", err=True)
        code = 130
    except BrokenPipeError:
        code = 0
    sys.exit(code if isinstance(code, int) else 0)
