"""`walproof advise`: records and requirements in, ranked choices out. Decides nothing by itself."""

import json
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from walproof.advising.advice_file import as_json, chosen
from walproof.advising.advise import advise as advised
from walproof.advising.advise import choose_environment
from walproof.advising.evidence import evidence_of
from walproof.advising.recipes.catalogue import recipe, recipes
from walproof.advising.requirements import EXAMPLE, classes_of, requirements_of
from walproof.errors import MachineError
from walproof.model.advice import Advice, Choice
from walproof.model.estimate import Estimate
from walproof.model.units import counted, duration_s
from walproof.records.reader import read


def advice_of(
    records: tuple[str, ...],
    requirements: dict[str, str | None],
    classes: tuple[str, ...],
    where: tuple[str | None, str | None],
) -> Advice:
    """The advice for requirements as typed; `where` is the round trip and workload that are the user's."""
    evidence = evidence_of([(name, read(Path(name)).events) for name in records])
    required = requirements_of((name, text) for name, text in requirements.items() if text is not None)
    rtt, workload = where
    environment = choose_environment(evidence, None if rtt is None else 1000 * duration_s(rtt), workload)
    return advised(evidence, required, environment, classes_of(classes))


@click.command()
@click.argument("records", nargs=-1, required=True, metavar="RECORD…")
@click.option("--rpo", metavar="0", default=None, help="Most that may be lost with the leader: 0, 1s …")
@click.option("--rto", metavar="30s", default=None, help="Longest time without writes after the leader is gone.")
@click.option("--max-commit-latency", metavar="10ms", default=None, help="Of the 95th percentile.")
@click.option("--min-tps", metavar="2000", default=None, help="Transactions per second at least.")
@click.option("--read-your-writes", is_flag=True, help="A commit is visible on every standby when it returns.")
@click.option("--class", "classes", multiple=True, metavar="NAME:WISH,…", help=f"A class of transactions: {EXAMPLE}.")
@click.option("--rtt", metavar="10ms", default=None, help="Your round trip, where the records hold several.")
@click.option("--workload", metavar="WORD", default=None, help="Your workload, where the records hold several.")
@click.option(
    "--recipe",
    "wanted",
    metavar="NAME",
    default=None,
    help="Print one recipe of the first choice: plain, patroni, cnpg …",
)
@click.option(
    "--choice", "number", metavar="N", type=int, default=1, show_default=True, help="The choice recipes are made of."
)
@click.option("--out", metavar="DIR", default=None, help="Write every recipe of the choice there.")
@click.option("--json", "json_wanted", is_flag=True, help="One JSON object, as `walproof apply` reads it.")
def advise(
    records: tuple[str, ...],
    rpo: str | None,
    rto: str | None,
    max_commit_latency: str | None,
    min_tps: str | None,
    read_your_writes: bool,
    **more: object,
) -> int:
    """Which level, quorum, pool and timeouts to run, from records of price and prove. Exit 1 when a wish is refused."""
    requirements = {
        "rpo": rpo,
        "rto": rto,
        "max-commit-latency": max_commit_latency,
        "min-tps": min_tps,
        "read-your-writes": "yes" if read_your_writes else None,
    }
    classes, where = more["classes"], (more["rtt"], more["workload"])
    advice = advice_of(records, requirements, classes, where)  # type: ignore[arg-type]
    number = int(str(more["number"]))
    if more["out"]:
        _write_recipes(Path(str(more["out"])), chosen(advice, number), advice)
    if more["wanted"]:
        click.echo(recipe(chosen(advice, number), advice.cluster, str(more["wanted"])).text, nl=False)
    elif more["json_wanted"]:
        click.echo(json.dumps(as_json(advice)))
    else:
        _show(advice)
    return 1 if advice.refused else 0


def _write_recipes(folder: Path, choice: Choice, advice: Advice) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for made in recipes(choice, advice.cluster).values():
            (folder / made.file).write_text(made.text, "utf-8")
    except OSError as wrong:
        raise MachineError(f"cannot write recipes to {folder}: {wrong.strerror}", "name another --out") from None


def _interval(estimate: Estimate, digits: int) -> str:
    return f"{estimate.value:.{digits}f} ({estimate.low:.{digits}f}–{estimate.high:.{digits}f})"


def _stacked(estimate: Estimate, digits: int) -> str:
    return f"{estimate.value:.{digits}f}\n{estimate.low:.{digits}f}–{estimate.high:.{digits}f}"


def _show(advice: Advice) -> None:
    console = Console(highlight=False)
    required = advice.requirements.text or "no requirement"
    if advice.refused:
        console.print(f"refused: {required} ({advice.environment.text})", style="bold red")
        for refused in advice.refused:
            console.print(f"  {refused.requirement}: {refused.limit}", soft_wrap=True)
            console.print(f"  nearest possible: {refused.nearest}", soft_wrap=True)
        return
    first = advice.choices[0]
    console.print(
        f"run {first.text}: {_interval(first.tps, 0)} transactions/s, p95 {_interval(first.p95_ms, 1)} ms",
        style="bold",
    )
    console.print(
        f"for {required}; {advice.environment.text}; {counted(advice.dominated, 'dominated choice')} left out",
        style="dim",
    )
    table = Table("", "level", "quorum", "strict", "clients", "transactions/s", "p95, ms", "ttl")
    table.columns[1].no_wrap = True
    for c in advice.choices:
        quorum = f"{c.quorum_kind} {c.quorum}" if c.quorum else "–"
        cells = (str(c.number), str(c.level), quorum, "yes" if c.strict else "no", str(c.clients))
        ttl = f"{c.timeouts.ttl} s" if c.timeouts.rto_required else "unchanged"
        table.add_row(*cells, _stacked(c.tps, 0), _stacked(c.p95_ms, 1), ttl)
    console.print(table)
    for c in advice.choices[:1]:
        _details(console, c)
    for caveat in advice.caveats:
        console.print(f"caveat: {caveat}", style="yellow")
    console.print("hint: walproof advise … --json > advice.json; walproof apply advice.json --dry-run", style="dim")


def _details(console: Console, choice: Choice) -> None:
    for label, lines in (("proven", choice.proven), ("assumed", choice.assumed), ("trade-offs", choice.trade_offs)):
        for line in lines or ("nothing in these records",):
            console.print(f"  {label:10} {line}", soft_wrap=True)
    if choice.rto_s is not None:
        seen = choice.rto_s
        console.print(f"  recovery   {seen.value:.1f} s seen ({seen.low:.1f}–{seen.high:.1f})")
    if choice.timeouts.rto_required:
        console.print(f"  failover   a failed leader is replaced within {choice.timeouts.leader_failure_s:g} s")
    for one in choice.classes:
        console.print(f"  class      {one.name}: {one.level} ({one.why})", soft_wrap=True)
