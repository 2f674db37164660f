"""The command `walproof`: verbs are imported when called; the outermost edge, where errors become exit codes."""

import atexit
import os
import shlex
import sys
import traceback

import click
import cloup

from walproof.cli.options import SETTINGS, Group, section
from walproof.errors import Error, ExitCode
from walproof.machine import signals, standard_streams
from walproof.machine.redaction import hidden_in, in_text
from walproof.machine.untrusted import field

_LONGEST = 2000
"""Characters of an error that are printed."""

SECTIONS = (
    section(
        "Start here",
        "walproof.cli.{}",
        demo="A real cluster, its prices, three drills, one conclusion.",
        lab="A real cluster on this machine: up, status, faults, down.",
    ),
    section(
        "Measure",
        "walproof.cli.{}",
        price="What each commit level costs.",
        prove="What each commit level survives.",
        observe="What commits wait for, without a load; read-only.",
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
        forecast="What a configuration costs and loses in a year.",
        apply="Apply a recommendation, or undo it.",
        guard="Recovery in seconds when a CloudNativePG primary freezes.",
        salvage="Which commits a failover lost.",
        revert="Revert what an interrupted run had changed.",
        target="Rights that a kind of target needs.",
    ),
)


@cloup.group(cls=Group, context_settings=SETTINGS, sections=SECTIONS)
@click.version_option(package_name="walproof")
def walproof() -> None:
    """Prove what your PostgreSQL commits survive, and know what it costs."""


def _print_error(message: str, hint: str, arguments: list[str]) -> None:
    """One sentence on standard error, and what to do next; without the secrets of the command line."""
    click.echo(f"walproof: {_shown(message, arguments)}", err=True)
    if hint:
        click.echo(f"  hint: {_shown(hint, arguments)}", err=True)


def _shown(text: str, arguments: list[str]) -> str:
    # A server's words may be within it. Cut only when redacted: half an address would show its password.
    return field(in_text(text[: 32 * _LONGEST], arguments).replace("\n", " "))[:_LONGEST]


def _as_ordinary_user(argv: list[str]) -> None:
    """Labs of ordinary users live in namespaces of their own: go on in there where the command means the lab."""
    from walproof.lab import rootless

    atexit.register(rootless.step_outside)
    rootless.step_inside(argv)


def _hide_secrets(arguments: list[str]) -> None:
    """Show the process list this command without its passwords, from here on."""
    shown = [hidden_in(argument) for argument in arguments]
    if shown != arguments:
        from setproctitle import setproctitle

        setproctitle(shlex.join(["walproof", *shown]))


def main(argv: list[str] | None = None) -> None:
    """Run a verb. After a signal the exit code is 128 + its number; ENVIRONMENT when ending in order failed."""
    arguments = sys.argv[1:] if argv is None else argv
    with standard_streams.checked() as output, signals.ending_in_order():
        code = _run(arguments)
        received = signals.received()
    if output.lost:
        code = output.lost.exit_code
    sys.exit(code if received is None or code == ExitCode.ENVIRONMENT else 128 + received)


def _run(arguments: list[str]) -> int:
    """The verb's exit code; errors are printed."""
    try:
        _hide_secrets(arguments)
        if os.geteuid() != 0:
            _as_ordinary_user(arguments)
        code = walproof.main(args=arguments, prog_name="walproof", standalone_mode=False)
    except Error as error:
        if error.exit_code != ExitCode.READER_LEFT:
            _print_error(error.message, error.hint, arguments)
        code = error.exit_code
    except click.UsageError as wrong:
        command = wrong.ctx.command_path if wrong.ctx else "walproof"
        _print_error(" ".join(wrong.format_message().split()), f"{command} --help", arguments)
        code = ExitCode.USAGE
    except (KeyboardInterrupt, click.Abort):
        click.echo("walproof: interrupted", err=True)
        code = ExitCode.INTERRUPTED
    except Exception:  # noqa: BLE001 (the outermost edge)
        # Never Python's own exit code, which is BROKEN.
        traceback.print_exc()
        click.echo("walproof: an error inside walproof; please report it with the lines above", err=True)
        code = ExitCode.ENVIRONMENT
    return code if isinstance(code, int) else ExitCode.HELD
