"""Commands and groups of commands as all verbs share them: modules imported late, examples."""

import functools
import importlib
import re
import tomllib
from importlib import resources

import click
import cloup

SETTINGS = cloup.Context.settings(
    help_option_names=["-h", "--help"],
    show_default=True,
    formatter_settings=cloup.HelpFormatter.settings(theme=cloup.HelpTheme(heading=cloup.Style(bold=True))),
)


@functools.cache
def examples() -> dict[str, dict[str, str]]:
    """Examples by verb ("" is walproof itself): what is typed after `walproof`, and what it does."""
    return tomllib.loads((resources.files("walproof.cli") / "examples.toml").read_text("utf-8"))


def _write_examples(ctx: click.Context, formatter: click.HelpFormatter) -> None:
    lines = examples().get(ctx.command_path.partition(" ")[2], {})
    if not lines:
        return
    formatter.write_paragraph()
    formatter.write_heading("Examples")
    width = max(map(len, lines))
    one_line = [f"  walproof {line:{width}}  # {text}\n" for line, text in lines.items()]
    two_lines = [f"  # {text}\n  walproof {line}\n" for line, text in lines.items()]
    formatter.write("".join(one_line if max(map(len, one_line)) <= formatter.width + 1 else two_lines))


class Command(cloup.Command):
    """A command whose help ends with its examples, and whose values are not empty."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As cloup's, after a usage error for an empty value, which would mean this directory or nothing at all."""
        for before, word in [] if ctx.ignore_unknown_options else zip(["", *args], args, strict=False):
            if word == "" or re.fullmatch("--[a-z-]+=", word):
                option = word.rstrip("=") or (before if before.startswith("--") else "an argument")
                raise click.UsageError(f"{option} is empty", ctx)
        return super().parse_args(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The examples."""
        _write_examples(ctx, formatter)

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


class Group(cloup.Group):
    """Imports a deferred command when it is called; prints its help, exit 0, when no command is given."""

    command_class = Command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click's; nothing given means --help, and so does `help VERB`."""
        if not args or args[0] == "help":
            args = [*args[1:], "--help"]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As cloup's, and the module is imported."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, Deferred) else command, rest

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The examples."""
        _write_examples(ctx, formatter)


def section(title: str, module: str, **commands: str) -> cloup.Section:
    """A section of a group's help: commands by name with a line of help; `{}` in `module` is the command's name."""
    return cloup.Section(title, [Deferred(name, module.format(name), text) for name, text in commands.items()])
