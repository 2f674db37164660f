"""`walproof apply`: a choice of advice applied to a cluster, or undone. Shows the difference first."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import cloup

from walproof.advising.advise import chosen, read_advice
from walproof.advising.recipes import config_change
from walproof.cli import options as opt
from walproof.cli.advise import advice_of, requirement_options
from walproof.cli.options import Command
from walproof.cli.runs import APPLIED, Layer, journal_of_apply
from walproof.errors import ExitCode, UndecidedError, UsageError
from walproof.machine.signals import shielded
from walproof.model.advice import Advice, Choice, ClusterProfile
from walproof.model.drill import Capability
from walproof.model.guarantee import ConfigChange, Difference
from walproof.model.ports import Configuration, Target
from walproof.model.topology import ClusterView
from walproof.model.units import counted
from walproof.reporting.console_output import console, print_json, print_result
from walproof.targets.choose import choose
from walproof.targets.configure import applied
from walproof.targets.external import consent


@cloup.command(cls=Command)
@cloup.argument("advice", required=False, metavar="[ADVICE.json|RECORD]")
@opt.group(
    "Change",
    opt.option(
        "--choice number", "N", "Which choice of the advice, drilled or not.  [default: 1, if drilled]", type=int
    ),
    opt.flag("--undo", "Undo the last application."),
    opt.dry_run,
)
@opt.cluster(opt.allow("config"))
@opt.requirements
@opt.output()
def apply(
    advice: str | None,
    number: int | None,
    undo: bool,
    dry_run: bool,
    target: str | None,
    allow: str | None,
    **options: Any,
) -> ExitCode:
    """Apply a recommendation: the difference, the change, the wait until it is in effect; on any error, reverted.

    The requirements are for a RECORD, as in `walproof advise`.
    """
    as_json = bool(options["as_json"])
    if advice is None and not undo:
        raise UsageError(
            "give advice, a record, or --undo", "walproof advise RECORD --rpo 0 --json > advice.json; apply it"
        )
    choice, unproven = (None, None) if advice is None else _choice(_advice(advice, options), number)
    cluster = choose(target)
    configuration = cluster.capabilities().configuration
    if configuration is None:
        reason = cluster.capabilities().why_not(Capability.CONFIGURE)
        raise UsageError(f"{cluster.name} has no configuration to apply to: {reason}", "name a lab or a cluster")
    if choice is None or undo:
        if not dry_run:
            consent.check(cluster, "undoing", ["config"], consent.read(allow))
        return _undo(cluster, configuration, dry_run=dry_run, as_json=as_json)
    plan = configuration.plan(_change(choice, cluster))
    if dry_run or not plan.differences:
        _print_result(choice, cluster, plan.differences, None, as_json=as_json)
        return ExitCode.HELD
    if unproven:
        raise unproven
    consent.check(cluster, "applying", ["config"], consent.read(allow))
    if not as_json:
        _print_lines(plan.differences)
    name = _journal_name(cluster)
    journal = journal_of_apply(name)
    applied(configuration, plan, Layer(journal, complete=False))
    with shielded():
        # From here on it is applied, and a signal does not keep that from being reported.
        journal.note(cluster.clock.now(), name, APPLIED, choice.text, before=None, after=None)
        _print_result(choice, cluster, plan.differences, cluster.observe(), as_json=as_json)
    return ExitCode.HELD


def _journal_name(cluster: Target) -> str:
    """What the journal calls the target: a lab by its full name, so that `revert` finds it wherever it is called."""
    return cluster.name if cluster.name != "lab" else "lab:lab"


def _advice(path: str, options: dict[str, Any]) -> Advice:
    if os.path.isfile(path) and Path(path).suffix == ".json":
        return read_advice(Path(path).read_text("utf-8", errors="replace"))
    if not requirement_options(options):
        raise UsageError(
            f"{path} is a record and no requirement is given", "walproof apply RECORD --rpo 0, or give advice.json"
        )
    return advice_of((path,), options)


def _choice(advice: Advice, number: int | None) -> tuple[Choice, UndecidedError | None]:
    """The choice, and why it is not applied: no drill decides about it, and neither it nor its level was named."""
    choice = chosen(advice, number or 1)
    if not choice.undecided or number is not None or advice.requirements.level is not None:
        return choice, None
    why = f"choice 1 ({choice.text}) is not proven: {choice.undecided}"
    return choice, UndecidedError(why, f"{advice.prove}; or name it: --choice 1")


def _change(choice: Choice, cluster: Target) -> ConfigChange:
    """For this very cluster: its own versions, not those of the records."""
    described, members = cluster.describe(), tuple(m.name for m in cluster.observe().members)
    versions = ClusterProfile(described.manager or "none", described.postgres or 18, described.patroni, members)
    return config_change(choice, versions)


def _print_lines(lines: tuple[Difference, ...]) -> None:
    for line in lines:
        click.echo(f"  {line.text}")


def _print_result(
    choice: Choice,
    cluster: Target,
    lines: tuple[Difference, ...],
    now: ClusterView | None,
    *,
    as_json: bool,
) -> None:
    if as_json:
        tree = {
            "target": cluster.name,
            "choice": choice.text,
            "differences": [asdict(line) for line in lines],
            "in_effect": None if now is None else {"names": now.standby_names, "synchronous": list(now.synchronous)},
        }
        print_json(tree)
        return
    screen = console()
    if now is not None:
        screen.print(
            f"in effect on {cluster.name}: {choice.text}; {now.standby_names or 'no standby named'}", style="bold"
        )
        screen.print("walproof apply --undo reverts it", style="dim")
    elif lines:
        screen.print(f"would change {counted(len(lines), 'setting')} of {cluster.name}: {choice.text}", style="bold")
        _print_lines(lines)
    else:
        screen.print(f"nothing to change: {choice.text} is already in effect on {cluster.name}", style="bold")


def _undo(cluster: Target, configuration: Configuration, *, dry_run: bool, as_json: bool) -> ExitCode:
    name = _journal_name(cluster)
    layer = Layer(journal_of_apply(name), complete=True)
    pending = layer.pending(name)
    if dry_run:
        changes = [{"name": c.name, "before": c.after, "after": c.before} for c in pending]
        lines = (f"  {c.name}: {c.after} → {c.before}" for c in pending)
        first = f"would undo {counted(len(pending), 'change')} on {cluster.name}"
        print_result({"dry_run": True, "target": cluster.name, "changes": changes}, first, *lines, as_json=as_json)
        return ExitCode.HELD
    begun = layer.begin(cluster.clock.now(), name)
    left = configuration.undo(layer)
    layer.close(name)
    print_result(
        {"target": cluster.name, "undone": len(pending), "left": left},
        f"undone on {cluster.name}" if begun or pending else f"walproof has applied nothing on {cluster.name}",
        *(f"  {sentence}" for sentence in left),
        as_json=as_json,
    )
    return ExitCode.BROKEN if left else ExitCode.HELD
