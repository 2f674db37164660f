"""`walproof apply`: a choice of advice applied to a cluster, or undone. Shows the difference first."""

import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import cloup

from walproof.advising.advise import chosen, prove_command, read_advice
from walproof.advising.evidence import cluster_of
from walproof.advising.recipes import config_change
from walproof.cli import options as opt
from walproof.cli.advise import advice_of, print_settings, requirement_options
from walproof.cli.options import Command
from walproof.cli.runs import APPLIED, Layer, applied_as, applying, covering, journal_of_apply, standing, undoing
from walproof.errors import ExitCode, MachineError, UndecidedError, UsageError
from walproof.machine.quoting import pasted
from walproof.machine.signals import shielded
from walproof.machine.untrusted import one_line
from walproof.model.advice import Advice, Choice
from walproof.model.guarantee import ConfigPlan
from walproof.model.ports import Configuration, Reverting, Target
from walproof.model.topology import ClusterView
from walproof.model.units import counted
from walproof.records.journal import Change
from walproof.reporting.console_output import console, print_json, print_result
from walproof.targets.choose import choose
from walproof.targets.configure import applied, check_identity, configuration_of
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
    stored = None if advice is None else _stored(advice, options)
    cluster = choose(target, answering=not undo)
    configuration = configuration_of(cluster)
    if advice is None or undo:
        if not dry_run:
            consent.check(cluster, "undoing", ["config"], consent.read(allow))
        return _undo(cluster, configuration, dry_run=dry_run, as_json=as_json)
    name = _journal_name(cluster)
    choice, unproven = _choice(stored or advice_of((advice,), options, cluster), number, name)
    journal = journal_of_apply(name, cluster.identity)
    layer = Layer(journal, complete=False)
    with nullcontext() if dry_run else applying(journal.path):
        check_identity(layer, cluster, journal.path)
        if not dry_run:
            layer.check_undone(name)
        plan = configuration.plan(config_change(choice, cluster_of(cluster.describe())))
        choice = replace(choice, caveats=(*choice.caveats, *plan.caveats, *_other_levels(choice, cluster)))
        if stored is not None:
            _check_listed(choice, plan, cluster.name if cluster.external else target or "lab")
        if dry_run or not plan.differences:
            _print_result(choice, cluster, plan, None, as_json=as_json)
            return ExitCode.HELD
        if unproven:
            raise unproven
        consent.check(cluster, "applying", ["config"], consent.read(allow))
        if not as_json:
            _print_plan(f"setting {_counts(plan)} of {cluster.name}: {choice.text}", plan)
        applied(configuration, plan, layer)
        with shielded():
            # From here on it is applied, and a signal does not keep that from being reported.
            journal.note(cluster.clock.now(), name, APPLIED, choice.text, before=None, after=None)
            _print_result(choice, cluster, plan, cluster.observe(), as_json=as_json)
    return ExitCode.HELD


def _journal_name(cluster: Target) -> str:
    """What the journal calls the target: a lab by its full name, so that `revert` finds it wherever it is called."""
    return cluster.name if cluster.name != "lab" else "lab:lab"


def _stored(path: str, options: dict[str, Any]) -> Advice | None:
    """The advice of a file; None for a record, of which advice is made; UsageError where that needs a requirement."""
    if not os.path.exists(path):
        raise UsageError(f"there is no {path}", "walproof advise RECORD --rpo 0 --json > advice.json; apply it")
    if os.path.isfile(path) and Path(path).suffix == ".json":
        return read_advice(Path(path).read_text("utf-8", errors="replace"))
    if not requirement_options(options):
        raise UsageError(
            f"{path} is a record and no requirement is given", "walproof apply RECORD --rpo 0, or give advice.json"
        )
    return None


def _choice(advice: Advice, number: int | None, target: str) -> tuple[Choice, UndecidedError | None]:
    """The choice, and why it is not applied: no drill decides about it, and neither it nor its level was named."""
    choice = chosen(advice, number or 1)
    choice = replace(choice, caveats=(*choice.caveats, *advice.caveats))
    if not choice.undecided or number is not None or advice.requirements.level is not None:
        return choice, None
    why = f"choice 1 ({choice.text}) is not proven: {choice.undecided}"
    return choice, UndecidedError(why, f"{prove_command(advice.choices, target)}; or name it: --choice 1")


def _other_levels(choice: Choice, cluster: Target) -> list[str]:
    """A caveat for each role, database and function of the cluster that sets another level than the choice's itself."""
    asked = cluster.capabilities().member_states
    states = asked.states() if asked else ()
    if not any(state.answers for state in states):
        return ["whether a role, database or function sets another level itself is not known"]
    others = {text for state in states for text in state.overrides if not text.endswith(f"={choice.level}")}
    return [f"these commits have another level: {one_line(text, 200)}" for text in sorted(others)]


def _check_listed(choice: Choice, plan: ConfigPlan, where: str) -> None:
    """UsageError unless the advice lists what the plan sets, and nothing else: what was read is what is set."""
    hint = pasted(
        "walproof advise RECORD --target {where:shell} --json > advice.json lists what is set there", where=where
    )
    if not choice.settings:
        raise UsageError("the advice does not list what it sets: it is of another version of walproof", hint)
    for one in plan.settings:
        if one not in choice.settings:
            raise UsageError(f"the advice does not list {one.text}, which would be set on {where}", hint)
    for one in choice.settings:
        if one not in plan.settings:
            raise UsageError(f"the advice lists {one.text}, which would not be set on {where}", hint)


def _counts(plan: ConfigPlan) -> str:
    changed = len({one.name for one in plan.differences})
    return f"{counted(len(plan.settings), 'setting')} ({counted(changed, 'difference')} now)"


def _print_plan(heading: str, plan: ConfigPlan) -> None:
    now: dict[str, str] = {}
    for one in plan.differences:
        value = "not set" if one.before is None else one.before
        value = value if one.where == "cluster" else f"{value} on {one.where}"
        now[one.name] = f"{now[one.name]}, {value}" if one.name in now else value
    print_settings(heading, plan.settings, now)


def _print_result(choice: Choice, cluster: Target, plan: ConfigPlan, now: ClusterView | None, *, as_json: bool) -> None:
    if as_json:
        tree = {
            "target": cluster.name,
            "choice": choice.text,
            "undecided": choice.undecided,
            "caveats": list(choice.caveats),
            "settings": [asdict(one) for one in plan.settings],
            "differences": [asdict(one) for one in plan.differences],
            "in_effect": None if now is None else {"names": now.standby_names, "synchronous": list(now.synchronous)},
        }
        print_json(tree)
        return
    screen = console()
    if choice.undecided:
        screen.print(f"not proven: {choice.undecided}", style="yellow", soft_wrap=True)
    for caveat in choice.caveats:
        screen.print(f"caveat: {caveat}", style="yellow", soft_wrap=True)
    if now is not None:
        screen.print(
            f"in effect on {cluster.name}: {choice.text}; {now.standby_names or 'no standby named'}", style="bold"
        )
        screen.print("walproof apply --undo reverts it", style="dim")
    elif plan.differences:
        _print_plan(f"would set {_counts(plan)} of {cluster.name}: {choice.text}", plan)
    else:
        _print_plan(f"nothing to change: {choice.text} is already in effect on {cluster.name}", plan)


def _stays(path: Path, alone: list[str], change: Change, is_there: Callable[[Change], bool]) -> bool:
    newer = standing(path, change, is_there)
    if newer:
        alone.append(f"{newer} has changed {change.name} since, and is not undone")
    return bool(newer)


def _undo(cluster: Target, configuration: Configuration, *, dry_run: bool, as_json: bool) -> ExitCode:
    name = _journal_name(cluster)
    journal = journal_of_apply(name)
    layer = Layer(journal, complete=True)
    if dry_run:
        check_identity(layer, cluster, journal.path)
        pending = layer.pending(name)
        changes = [{"name": c.name, "before": c.after, "after": c.before} for c in pending]
        lines = (f"  {c.name}: {c.after} → {c.before}" for c in pending)
        first = f"would undo {counted(len(pending), 'change')} on {cluster.name}"
        print_result({"dry_run": True, "target": cluster.name, "changes": changes}, first, *lines, as_json=as_json)
        return ExitCode.HELD
    with undoing() as announce, applying(journal.path):
        check_identity(layer, cluster, journal.path)
        pending = layer.pending(name)
        announce(pending)
        if covered := covering(journal.path, pending):
            change, newer = covered[0]
            raise MachineError(
                f"{newer} has changed {change.name} since, and is not undone",
                "let it end, or where it was killed: walproof revert",
            )
        begun = layer.begin(cluster.clock.now(), name)
        alone: list[str] = []
        left = configuration.undo(layer, Reverting(stays=partial(_stays, journal.path, alone)))
        stays = {one.number for one in journal.pending(name)} & {one.number for one in pending}
        layer.close(name)
    if alone:
        raise MachineError("; ".join([*dict.fromkeys(alone), *left]), "undo that first: walproof revert, apply --undo")
    first = f"walproof has applied nothing on {cluster.name}"
    if not (begun or pending) and (names := applied_as(cluster.identity)):
        raise UndecidedError(
            f"{first}, and something as {' and '.join(names)} on it or on what it is a copy of",
            "if it is that one: walproof apply --undo --target that name",
        )
    if begun or pending:
        first = f"not all is undone on {cluster.name}:" if left else f"undone on {cluster.name}"
    print_result(
        {"target": cluster.name, "undone": len(pending), "left": left},
        first,
        *(f"  {sentence}" for sentence in left),
        *([f"  what stays is in {journal.path}"] if stays else ()),
        as_json=as_json,
    )
    return ExitCode.BROKEN if left else ExitCode.HELD
