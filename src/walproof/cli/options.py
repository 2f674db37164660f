"""What all verbs share: options defined once, their groups, and the examples of each help page."""

import functools
import importlib
import re
import tomllib
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click
import cloup
from click.shell_completion import CompletionItem

from walproof.errors import ExitCode, MachineError, UsageError
from walproof.model.guarantee import read_quorum
from walproof.model.units import duration_s

SETTINGS = cloup.Context.settings(
    help_option_names=["-h", "--help"],
    show_default=True,
    formatter_settings=cloup.HelpFormatter.settings(theme=cloup.HelpTheme(heading=cloup.Style(bold=True))),
)
LEAVES = "walproof leaves"


@functools.cache
def examples() -> dict[str, dict[str, str]]:
    """Examples by verb ("" is walproof itself): what is typed after `walproof`, and what it does."""
    return tomllib.loads((resources.files("walproof.cli") / "examples.toml").read_text("utf-8"))


class _WithExamples(click.Command):
    """A command whose help ends with its examples."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The examples: on one line with what they do, or on two where that is too long."""
        lines = examples().get(ctx.command_path.partition(" ")[2], {})
        if not lines:
            return
        formatter.write_paragraph()
        formatter.write_heading("Examples")
        width = max(map(len, lines))
        one_line = [f"  walproof {line:{width}}  # {text}\n" for line, text in lines.items()]
        two_lines = [f"  # {text}\n  walproof {line}\n" for line, text in lines.items()]
        formatter.write("".join(one_line if max(map(len, one_line)) <= formatter.width + 1 else two_lines))


class Command(_WithExamples, cloup.Command):
    """A command whose values are not empty."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As cloup's, after a usage error for an empty value, which would mean this directory or nothing at all."""
        for before, word in [] if ctx.ignore_unknown_options else zip(["", *args], args, strict=False):
            if word == "" or re.fullmatch("--[a-z-]+=", word):
                option = word.rstrip("=") or (before if before.startswith("--") else "an argument")
                raise click.UsageError(f"{option} is empty", ctx)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """As click's; ENVIRONMENT in place of success where one of `ctx.meta[LEAVES]` says that something stays."""
        code = super().invoke(ctx)
        return code or (ExitCode.ENVIRONMENT if any(leaves() for leaves in ctx.meta.get(LEAVES, ())) else code)

    def get_short_help_str(self, limit: int = 45) -> str:
        """The first sentence of the help, in full: where it is long, the list of commands folds it."""
        return (self.short_help or self.help or "").partition("\n\n")[0]


class Deferred(Command):
    """Stands for a command in its group's help and in shell completion, without importing its module."""

    def __init__(self, name: str, module: str, text: str) -> None:
        super().__init__(name, short_help=text)
        self.module = module

    def load(self) -> click.Command:
        """The command itself: what its module calls by its name."""
        command: click.Command = getattr(importlib.import_module(self.module), str(self.name))
        return command


class Group(_WithExamples, cloup.Group):
    """Imports a deferred command when it is called; prints its help, exit 0, when no command is given."""

    command_class = Command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click's; nothing given means --help, and so does `help VERB`."""
        if not args or args[0] == "help":
            args = [*args[1:], "--help"]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """As cloup's; but for a broken pipe, which click takes for a reader of its own that left, and ends with 1."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as wrong:
            raise MachineError(f"a program or server closed its connection to walproof: {wrong}") from wrong

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As cloup's, and the module is imported."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, Deferred) else command, rest


def section(title: str, module: str, **commands: str) -> cloup.Section:
    """A section of a group's help: commands by name with a line of help; `{}` in `module` is the command's name."""
    return cloup.Section(title, [Deferred(name, module.format(name), text) for name, text in commands.items()])


Decorator = Callable[[Any], Any]
DURATION: Any = duration_s
"""Type of an option that takes a duration: seconds of 10ms, 3s, 2min or a bare number of seconds."""
QUORUM: Any = read_quorum
"""Type of an option that takes a quorum: any2, first1, all."""
group = cloup.option_group


def option(names: str, metavar: str, text: str, **settings: Any) -> Decorator:
    """An option with a value: "--name" or "--name parameter", what stands for the value, help."""
    return cloup.option(*names.split(), metavar=metavar, help=text, **settings)


def words(names: str, metavar: str, text: str, **settings: Any) -> Decorator:
    """An option with a comma-separated list, received as text; given several times, the lists add up."""

    def joined(_ctx: click.Context, _option: click.Parameter, values: tuple[str, ...]) -> str | None:
        return ",".join(values) or None

    return option(names, metavar, text, multiple=True, callback=joined, **settings)


def flag(names: str, text: str) -> Decorator:
    """An option without a value."""
    return cloup.option(*names.split(), is_flag=True, help=text)


def choice(names: str, values: list[str], text: str, **settings: Any) -> Decorator:
    """An option with one of these values."""
    return cloup.option(*names.split(), type=click.Choice(values), help=text, **settings)


json_output = flag("--json as_json", "One JSON object on standard output and nothing else.")
ratios_required = words(
    "--require", "on>=0.9@16,…", "Ratios required, with clients or at all; exit 0 met, 1 not met, 4 undecided."
)
dry_run = flag("--dry-run", "Say what would be done and do nothing.")
seed = option("--seed", "N", "Seed of every random choice.", type=click.IntRange(1), default=1)
junit = option("--junit", "FILE", "JUnit XML for CI; - is standard output.")
port = option("--port", "PORT", "First of nine ports on 127.0.0.1.", type=int, default=5500)
postgres = option("--postgres", "15|PATH", "Another install.  [default: PostgreSQL 18 of the Python wheel]")
record = option(
    "--record directory", "DIR", "Where the record goes.  [default: below records/]", type=click.Path(path_type=Path)
)


def _as_list(_ctx: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> list[str] | None:
    """As it comes back from a record; None where it was not given."""
    return list(given) or None


workload = (
    words(
        "--workload",
        "WORD",
        "tpcb-like, select-only, simple-update, insert, batch:N or a pgbench script; by weight: a.sql@3,b.sql@1.",
    ),
    option(
        "-D --define",
        "NAME=VALUE",
        "pgbench's -D for your scripts. Recorded: no secrets.",
        multiple=True,
        callback=_as_list,
    ),
    option("--scale", "N", "pgbench's scale, also as 2xmemory or 2xshared_buffers.  [default: 20]"),
    option("-M --protocol", "WORD", "simple, extended or prepared.  [default: prepared; simple through a pool]"),
    option("--max-tries", "N", "Tries of a transaction that fails for serialization or deadlock.  [default: 1]"),
    option("--skew", "zipfian:1.1", "How accounts are drawn: zipfian, gaussian or exponential, and its parameter."),
    option("--init", "FILE.sql", "Run this file by psql once, in walproof's own database, to make your tables."),
)
"""What a transaction does and how it is sent."""


def complete_labs(_ctx: click.Context, _option: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of labs that begin so, for the shell."""
    from walproof.lab import home

    names = sorted(path.parent.name for path in home.state_folder().glob("*/blueprint.json"))
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def _members(ctx: click.Context, _argument: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from walproof.lab import home

    blueprint = home.stored(ctx.params.get("lab") or home.lab_name())
    return [CompletionItem(name) for name in (blueprint.members if blueprint else ()) if name.startswith(incomplete)]


lab = option("--lab", "NAME", "Which lab.  [default: $WALPROOF_LAB, or lab]", shell_complete=complete_labs)


def of_a_lab(command: Any) -> Any:
    return lab(json_output(command))


def member(name: str = "member", **settings: Any) -> Decorator:
    """A positional argument that is a member's name, completed from the lab that is up."""
    return cloup.argument(name, shell_complete=_members, **settings)


_CONTEXT, _IMAGE, _PODS = "context", "load-image", "load-pods"


def _keep_lab(ctx: click.Context, _option: click.Parameter, name: str | None) -> None:
    ctx.meta[__name__] = name


def addressed(ctx: click.Context, _option: click.Parameter, target: str | None) -> str | None:
    """The value of --target, with --lab NAME meaning lab:NAME, and the options of a Kubernetes cluster as its words."""
    name: str | None = ctx.meta.get(__name__)
    words = {word: ctx.meta.get(f"{__name__}.{word}") for word in (_CONTEXT, _IMAGE, _PODS)}
    given = {word: value for word, value in words.items() if value}
    if name and target:
        raise UsageError("--lab cannot be used with --target", "give one of them")
    if given and not (target or "").startswith("cnpg:"):
        hint = "leave it out, or name such a cluster; a target file has keys for it"
        raise UsageError(f"--{next(iter(given))} needs --target cnpg:NAMESPACE/NAME", hint)
    if given and target:
        query = "&".join(f"{word}={quote(value, safe='/:@')}" for word, value in given.items())
        return f"{target}{'&' if '?' in target else '?'}{query}"
    return f"lab:{name}" if name else target


def _word(name: str, metavar: str, text: str) -> Decorator:
    """An option that becomes a word of a Kubernetes cluster's address."""

    def keep(ctx: click.Context, _option: click.Parameter, value: str | None) -> None:
        ctx.meta[f"{__name__}.{name}"] = value

    return option(f"--{name}", metavar, text, callback=keep, is_eager=True, expose_value=False)


kube_context = _word(_CONTEXT, "NAME", "A context of the kubeconfig, for cnpg:NAMESPACE/NAME.")
load_image = _word(_IMAGE, "REFERENCE", "Load from within cnpg:NAMESPACE/NAME, by pods of this image.")
load_pods = _word(_PODS, "N", "How many such pods.  [default: 1]")


def cluster(*more: Decorator, default: str = "the lab") -> Decorator:
    """--target and --lab, and what else belongs to them; the command receives `target` as `choose` reads it."""
    text = f"A target file, URL, DSN or cnpg:NAMESPACE/NAME; sim is simulated.  [default: {default}]"
    by_name = option(
        "--lab",
        "NAME",
        "A lab by its name, as --target lab:NAME.",
        shell_complete=complete_labs,
        callback=_keep_lab,
        is_eager=True,
        expose_value=False,
    )
    return group("Cluster", option("--target", "WHERE", text, callback=addressed), by_name, kube_context, *more)


def allow(consents: str) -> Decorator:
    """--allow with the consents a verb may need."""
    return words("--allow", "WORD,…", f"Consent on a cluster walproof did not start: {consents}.")


def output(*more: Decorator) -> Decorator:
    """What a verb writes: its own options, then --json."""
    return group("Output", *more, json_output)


def requirements(command: Any) -> Any:
    """What `advise` is asked for, and `apply` of a record: requirements, classes, conditions."""
    required = group(
        "Requirements",
        option("--rpo", "0", "Most that may be lost with the leader: 0, 1s …"),
        option("--rto", "30s", "Longest time without writes after the leader failed."),
        option("--max-commit-latency", "10ms", "Of the 95th percentile."),
        option("--min-tps", "2000", "Transactions per second at least."),
        option("--level", "on", "This commit level and no other, drilled or not."),
        flag("--read-your-writes", "A commit is visible on every standby when it returns."),
        option("--availability", "99.99", "Share of a year with writes, in percent, by a forecast."),
        option("--loss-per-year", "1e-6", "P(losing an acknowledged commit in a year), by a forecast."),
        option(
            "--class classes",
            "NAME:REQUIREMENT,…",
            "A class of transactions: --class payments:rpo=0 --class logs:rpo=1s.",
            multiple=True,
        ),
    )
    conditions = group(
        "Conditions",
        option("--rtt", "10ms", "Your round trip, where the records hold several."),
        option("--workload", "WORD", "Your workload, where the records hold several."),
        words(
            "--layout", "PLACE,…", "Of a forecast: members' zones.  [default: nodes as recorded, else a zone for each]"
        ),
        option("--failures failures_file", "FILE", "Of a forecast: failure rates.  [default: the shipped ones]"),
    )
    return required(conditions(command))
