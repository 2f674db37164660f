"""The command `walproof`: verbs are loaded when called; the outermost edge where errors become exit codes."""

import atexit
import importlib
import os
import sys

import click

from walproof.errors import Error

VERBS = {
    "demo": "A real cluster, its prices, two drills, one conclusion.",
    "lab": "A real cluster on this machine: up, status, faults, down.",
    "price": "What each commit level costs.",
    "prove": "What each commit level survives.",
    "study": "Published studies, reproduced side by side.",
    "report": "A record as tables, a page, Markdown, JSON or CSV.",
    "watch": "The cluster live: page, terminal or metrics.",
    "doctor": "What is wrong with a cluster's durability.",
    "advise": "Which configuration to run.",
    "apply": "Put advice into effect, or take it back.",
    "revert": "Revert what an interrupted run had changed.",
}


ALIASES = {"restore": "revert"}
"""Former names of verbs."""


class Verbs(click.Group):
    """Loads walproof.cli.VERB and its click command of the same name only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order a newcomer meets them."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command object of a verb, None for an unknown one."""
        cmd_name = ALIASES.get(cmd_name, cmd_name)
        if cmd_name not in VERBS:
            return None
        command = getattr(importlib.import_module(f"walproof.cli.{cmd_name}"), cmd_name)
        return command if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One line a verb, without loading any."""
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.command(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="walproof")
def walproof() -> None:
    """Prove what your PostgreSQL commits survive, and know what it costs."""


def say(error: Error) -> None:
    """One sentence on standard error, and what to do next."""
    click.echo(f"walproof: {error.message}", err=True)
    if error.hint:
        click.echo(f"  next: {error.hint}", err=True)


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
        code = walproof.main(args=argv, standalone_mode=False)
    except Error as error:
        say(error)
        code = error.exit_code
    except click.ClickException as wrong:
        click.echo(f"walproof: {wrong.format_message()}", err=True)
        click.echo("  next: walproof --help, or the same verb with --help", err=True)
        code = 2
    except (KeyboardInterrupt, click.Abort):
        click.echo("walproof: interrupted", err=True)
        code = 130
    except BrokenPipeError:
        code = 0
    sys.exit(code if isinstance(code, int) else 0)
