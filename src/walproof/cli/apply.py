"""`walproof apply`: a choice of advice put into effect on a cluster, or taken back. Shows the difference first."""

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from walproof.advising.advice_file import chosen, read_advice
from walproof.advising.recipes.settings import config_change
from walproof.cli.advise import advice_of
from walproof.cli.journals import APPLIED, Layer, journal_of_apply
from walproof.errors import UsageError
from walproof.model.advice import Advice, Choice, ClusterProfile
from walproof.model.configuration import ConfigChange, Difference
from walproof.model.ports import Capability, Configuration, Target
from walproof.model.topology import ClusterView
from walproof.targets.choose import choose
from walproof.targets.configure import applied
from walproof.targets.external import consent

REQUIREMENTS = (
    ("--rpo", "0"),
    ("--rto", "30s"),
    ("--max-commit-latency", "10ms"),
    ("--min-tps", "2000"),
    ("--rtt", "10ms"),
    ("--workload", "WORD"),
)


def _with_requirements(command: Any) -> Any:
    for name, meta in reversed(REQUIREMENTS):
        command = click.option(name, metavar=meta, default=None, help="As in advise, when a RECORD is given.")(command)
    return command


@click.command()
@click.argument("advice", required=False, metavar="[ADVICE.json|RECORD]")
@click.option(
    "--choice", "number", metavar="N", type=int, default=1, show_default=True, help="Which choice of the advice."
)
@click.option("--target", metavar="WHERE", default=None, help="The lab when not said; a target file, URL or DSN.")
@click.option("--allow", metavar="config", default=None, help="Consent, on a cluster of yours.")
@click.option("--dry-run", is_flag=True, help="Show the difference and change nothing.")
@click.option("--undo", is_flag=True, help="Take the last application back.")
@click.option("--json", "json_wanted", is_flag=True, help="One JSON object on standard output, nothing else.")
@_with_requirements
def apply(
    advice: str | None,
    number: int,
    target: str | None,
    allow: str | None,
    **more: Any,
) -> int:
    """Put advice into effect: the difference, the change, the wait until the views show it; else everything back."""
    if advice is None and not more["undo"]:
        raise UsageError("what shall be applied?", "walproof advise RECORD --rpo 0 --json > advice.json; apply it")
    choice = None if advice is None else chosen(_advice(advice, more), number)
    place = choose(target)
    configuration = place.capabilities().configuration
    if configuration is None:
        reason = place.capabilities().why_not(Capability.CONFIGURE)
        raise UsageError(f"{place.name} has no configuration to apply to: {reason}", "name a lab or a cluster")
    if choice is None or more["undo"]:
        if place.external:
            consent.require("undoing", ["config"], consent.read(allow), place.name)
        return _undo(place, configuration, as_json=more["json_wanted"])
    plan = configuration.plan(_change(choice, place))
    if more["dry_run"] or not plan.differences:
        _tell(choice, place, plan.differences, None, as_json=more["json_wanted"])
        return 0
    if place.external:
        consent.require("applying", ["config"], consent.read(allow), place.name)
    if not more["json_wanted"]:
        _show_lines(plan.differences)
    journal = journal_of_apply(_journal_name(place))
    applied(configuration, plan, Layer(journal, complete=False))
    name = _journal_name(place)
    journal.note(place.clock.now(), name, APPLIED, choice.text, before=None, after=None)
    _tell(choice, place, plan.differences, place.observe(), as_json=more["json_wanted"])
    return 0


def _journal_name(place: Target) -> str:
    """What the journal calls the target: a lab by its full name, so that `revert` finds it wherever it is called."""
    return place.name if place.name != "lab" else "lab:lab"


def _advice(path: str, words: dict[str, Any]) -> Advice:
    if Path(path).is_file() and Path(path).suffix == ".json":
        return read_advice(Path(path).read_text("utf-8", errors="replace"))
    names = ("rpo", "rto", "max-commit-latency", "min-tps")
    requirements = {name: words[name.replace("-", "_")] for name in names}
    if not any(requirements.values()):
        raise UsageError(
            f"{path} is a record: give a requirement", "walproof apply RECORD --rpo 0, or give advice.json"
        )
    return advice_of((path,), requirements, (), (words["rtt"], words["workload"]))


def _change(choice: Choice, place: Target) -> ConfigChange:
    """For this very cluster: its own versions, not those of the records."""
    facts = place.describe().facts
    members = tuple(m.name for m in place.observe().members)
    versions = ClusterProfile(
        facts.get("manager", "none"), int(facts.get("postgres", "18")), facts.get("patroni", ""), members
    )
    return config_change(choice, versions)


def _show_lines(lines: tuple[Difference, ...]) -> None:
    for line in lines:
        click.echo(f"  {line.text}")


def _tell(
    choice: Choice,
    place: Target,
    lines: tuple[Difference, ...],
    now: ClusterView | None,
    *,
    as_json: bool,
) -> None:
    if as_json:
        tree = {
            "target": place.name,
            "choice": choice.text,
            "differences": [{"where": d.where, "name": d.name, "before": d.before, "after": d.after} for d in lines],
            "in_effect": None if now is None else {"names": now.standby_names, "synchronous": list(now.synchronous)},
        }
        click.echo(json.dumps(tree))
        return
    console = Console(highlight=False)
    if now is not None:
        console.print(
            f"in effect on {place.name}: {choice.text}; {now.standby_names or 'no standby named'}", style="bold"
        )
        console.print("walproof apply --undo takes it back", style="dim")
    elif lines:
        console.print(f"would change {len(lines)} settings of {place.name}: {choice.text}", style="bold")
        _show_lines(lines)
    else:
        console.print(f"nothing to change: {choice.text} is already in effect on {place.name}", style="bold")


def _undo(place: Target, configuration: Configuration, *, as_json: bool) -> int:
    layer = Layer(journal_of_apply(_journal_name(place)), complete=True)
    name = _journal_name(place)
    count = len(layer.pending(name))
    left = configuration.undo(layer)
    layer.close(name)
    if as_json:
        click.echo(json.dumps({"target": place.name, "undone": count, "left": left}))
        return 1 if left else 0
    click.echo(f"undone on {place.name}" if count else f"nothing of walproof's is applied on {place.name}")
    for sentence in left:
        click.echo(f"  {sentence}")
    return 1 if left else 0
