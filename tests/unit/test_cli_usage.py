"""What users of other command lines expect: help, examples, --json, --lab, durations, pipes, colours, completion."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import click
import pytest

from tests.fixtures.blueprints import a_blueprint
from tests.fixtures.command_line import commands
from tests.fixtures.tiers import each
from walproof.cli import lab_cluster, main
from walproof.cli.options import Group, examples
from walproof.lab import home
from walproof.reporting.console_output import console

Run = Callable[[str], tuple[int, str, str]]


COMMANDS = {path: one for path, one in commands(main.walproof) if not isinstance(one, click.Group)}
EXAMPLES = [line for lines in examples().values() for line in lines]


def options(command: click.Command) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts}


@pytest.fixture
def run(walproof: Callable[..., tuple[int, str, str]]) -> Run:
    """Runs a line of walproof in an empty folder where no lab is up: exit code, standard output, standard error."""
    return lambda line: walproof(*shlex.split(line))


@pytest.mark.parametrize("line", ["", "lab", "lab fault", "study"])
def test_a_group_alone_prints_its_help(line: str, run: Run) -> None:
    code, out, err = run(line)
    assert (code, err) == (0, "")
    assert out == run(f"{line} --help")[1]
    assert out == run(f"help {line}")[1]
    assert out.startswith(f"Usage: walproof {line}".rstrip())


@each(COMMANDS, whole=True)
def test_every_command_prints_json_and_every_lab_command_takes_a_lab(path: tuple[str, ...]) -> None:
    known = options(COMMANDS[path])
    assert "--json" in known or path == ("lab", "psql")
    if path in {("lab", "doctor"), ("lab", "ls")}:
        return
    if path[0] in ("lab", "demo", "price", "prove", "watch", "doctor", "apply", "revert") or path == ("study", "run"):
        assert "--lab" in known


def test_every_command_has_examples_and_no_other_has() -> None:
    generated = {" ".join(p) for p in COMMANDS if p[:2] == ("lab", "fault")}
    assert {" ".join(p) for p in COMMANDS} - generated <= set(examples())
    assert set(examples()) <= {"", "lab", "lab fault", "study", *(" ".join(p) for p in COMMANDS)}


@each(EXAMPLES)
def test_every_example_can_be_parsed(line: str) -> None:
    context = click.Context(main.walproof, info_name="walproof")
    arguments = shlex.split(line.partition(" > ")[0])
    command: click.Command | None = main.walproof
    while isinstance(command, Group):
        _, command, arguments = command.resolve_command(context, arguments)
    assert command is not None
    command.make_context("example", arguments)


def test_help_fits_eighty_columns_without_colours_in_a_pipe(run: Run) -> None:
    for path in ((), *COMMANDS):
        out = run(" ".join((*path, "--help")))[1]
        assert "\x1b" not in out
        assert [line for line in out.splitlines() if len(line) > 80] == []


@each(["--help", "lab --help"])
def test_help_of_a_group_imports_nothing_heavy(line: str) -> None:
    heavy = ("numpy", "scipy", "psycopg", "pydantic", "starlette")
    script = (
        "import sys\nfrom walproof.cli import main\ntry: main.main(sys.argv[1:])\nexcept SystemExit: pass\n"
        f"print([m for m in {heavy} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script, *line.split()], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[]"


def test_a_mistyped_verb_or_option_is_answered_with_the_right_one(run: Run) -> None:
    assert "Did you mean 'price'?" in run("pric")[2]
    assert "--levels" in run("price --level on,off --levls on")[2]
    assert run("lab fault kil n1")[2].splitlines()[1] == "  hint: walproof lab fault --help"


@pytest.mark.parametrize("duration", ["100ms", "0.1", "0.1s", "0.001min"])
def test_a_duration_is_written_the_same_way_everywhere(duration: str, run: Run) -> None:
    assert run(f"watch --target sim --terminal --duration {duration}")[0] == 0
    assert run(f"price --target sim --levels on --clients 1 --sample {duration} --dry-run")[0] == 0
    assert run(f"lab fault slow-disk n1 --delay {duration}")[0] == 3


def test_a_piped_table_does_not_fold(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    lines = run("study list")[1].splitlines()
    studies = json.loads(run("study list --json")[1])["studies"]
    assert len(lines) == len(studies) + 2
    assert all(any(s["title"] in line and s["source"] in line for line in lines) for s in studies)


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert not console().no_color
    monkeypatch.setenv("NO_COLOR", "1")
    assert console().no_color


@pytest.mark.parametrize("line", [
    "price --target sim --levels on --clients 1 --rtt 0,3ms",
    "prove --target sim --fault kill,isolate",
    "prove --pitfall P1,P3",
])  # fmt: skip
def test_a_dry_run_with_json_prints_one_object_and_does_nothing(line: str, run: Run) -> None:
    code, out, err = run(f"{line} --dry-run --json")
    assert (code, err) == (0, "")
    assert json.loads(out)["dry_run"] is True
    assert not Path("records").exists()


@pytest.mark.parametrize(("typed", "passed"), [
    ("-c 'select 1'", ["-c", "select 1"]),
    ("-- -c 'select 1'", ["-c", "select 1"]),
    ("-AtX --csv -d other -f file.sql", ["-AtX", "--csv", "-d", "other", "-f", "file.sql"]),
    ("--member n2 -h elsewhere", ["-h", "elsewhere"]),
    ("", []),
])  # fmt: skip
def test_psql_gets_every_argument_that_is_its_own(
    typed: str, passed: list[str], run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    blueprint = a_blueprint(tmp_path)
    monkeypatch.setattr(home, "load", lambda name=None: blueprint)
    monkeypatch.setattr(lab_cluster, "_leader", lambda _: "n1")
    called: list[tuple[list[str], dict[str, str]]] = []
    for name in (others := ("PGPASSWORD", "PGHOSTADDR", "PGSERVICE")):
        monkeypatch.setenv(name, "of another cluster")
    monkeypatch.setattr(os, "execve", lambda _, argv, env: called.append((argv, env)))
    assert run(f"lab psql {typed}")[0] == 0
    argv, environment = called[0]
    assert argv[1:] == passed
    assert not environment.keys() & set(others)
    assert environment["PGHOST"] == blueprint.address("n2" if "n2" in typed else "n1")


def test_a_lab_is_named_by_option_or_target(run: Run) -> None:
    for line in ("lab status --lab second", "price --lab second", "price --target lab:second"):
        code, _, err = run(line)
        assert (code, "'second'" in err) == (3, True)


def test_faults_without_a_lab_are_listed_all_the_same(run: Run) -> None:
    code, out, _ = run("lab fault list --json")
    listed = json.loads(out)
    assert (code, listed["in_effect"]) == (0, [])
    named = {fault["name"]: fault["command"].split()[1:] for fault in listed["faults"]}
    assert {name for name, words in named.items() if words[1] == "fault"} == {
        path[2] for path in COMMANDS if path[:2] == ("lab", "fault") and path[2] not in ("list", "clear")
    }


@each([
    ("walproof pr", ["price", "prove"]),
    ("walproof lab fault k", ["kill", "kill-member"]),
    ("walproof lab fault kill n", ["n1", "n2", "n3"]),
    ("walproof lab status --lab ", ["paper"]),
    ("walproof study run sync", ["synchronous-commit"]),
    ("walproof price --bre", ["--break-even"]),
])  # fmt: skip
def test_a_shell_completes(words: str, offered: list[str], tmp_path: Path) -> None:
    home.store(replace(a_blueprint(tmp_path), home=tmp_path / "paper"))
    asked = {
        "_WALPROOF_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
        "WALPROOF_STATE": str(tmp_path),
        "WALPROOF_LAB": "paper",
    }
    script = "from walproof.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, env={**os.environ, **asked}
    )
    assert [line.partition(",")[2] for line in done.stdout.splitlines()] == offered, done.stderr
