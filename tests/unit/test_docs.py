"""README and docs: commands exist, links lead somewhere, the README is short and its excerpt is of the captured run."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click

from tests.fixtures.tiers import each
from tools import pictures
from walproof.cli.main import walproof
from walproof.cli.options import Deferred

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))


def commands(text: str) -> Iterator[str]:
    """What pages tell the reader to type: code spans and lines of code blocks that begin with walproof."""
    yield from re.findall(r"`(walproof [^`\n]+)`", text)
    for block in re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        yield from re.findall(r"^(?:ExecStart=/\S+/)?(walproof .*)$", block.replace("\\\n", " "), re.MULTILINE)


def unknown(line: str) -> str:
    """The first word of a command that walproof does not know; empty where there is none."""
    command: click.Command = walproof
    for word in shlex.split(line.partition(" -- ")[0], comments=True)[1:]:
        if word in ("|", ">", "&&"):
            break
        options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
        if isinstance(command, click.Group) and not word.startswith("-"):
            if word not in command.commands:
                return word
            inner = command.commands[word]
            command = inner.load() if isinstance(inner, Deferred) else inner
        elif word.startswith("--") and word.split("=")[0] not in options | {"--help"}:
            return "" if command.name == "psql" else word
    return ""


@each(PAGES)
def test_commands_that_pages_name_exist(page: Path) -> None:
    assert [(line, word) for line in commands(page.read_text()) if (word := unknown(line))] == []


def test_a_command_that_does_not_exist_is_found() -> None:
    assert unknown("walproof prove --fault kill --nothing 3") == "--nothing"
    assert unknown("walproof lab fly") == "fly"


def from_an_index(text: str) -> list[str]:
    """What installs walproof by its name alone, which is on no index; `name @ git+URL`, a folder and a wheel do not."""
    installs = r"(?:pip3? install|pipx (?:install|run)|uvx|uv (?:pip|tool) (?:install|run))\b"
    name = r"[\s'\"]walproof(?:\[[\w,]*\])?(?:[=~<>!]=[^\s'\"`]*)?(?=['\"`\s]|$)(?!['\"]?\s*@)"
    return re.findall(rf"{installs}[^\n`#]*?{name}", text, re.MULTILINE)


INSTALLED = [*PAGES, *ROOT.glob("[A-QS-Z]*.md"), ROOT / "Containerfile", *(ROOT / "src").rglob("*.py")]


def test_no_page_and_no_hint_installs_walproof_from_an_index() -> None:
    assert {str(file): lines for file in INSTALLED if (lines := from_an_index(file.read_text("utf-8")))} == {}


@each(
    [
        ("pip install walproof", True),
        ("`pip install 'walproof[kubernetes]'` ([why](x.md))", True),
        ("RUN pip install --no-cache-dir walproof", True),
        ('pip install --upgrade "walproof>=1.0"', True),
        ("pipx install walproof[lab]", True),
        ("pip install '.[kubernetes]'   # in walproof's checkout", False),
        ("in walproof's checkout: pip install '.[kubernetes]'", False),
        ("pip install 'dist/walproof-1.0.0-py3-none-any.whl[kubernetes]'", False),
        ("pip install 'walproof[kubernetes] @ git+URL'", False),
        ("/opt/walproof/bin/pip install --no-deps /tmp/walproof", False),
    ]
)
def test_what_names_an_index_is_told_from_what_does_not(line: str, named: bool) -> None:
    assert bool(from_an_index(line)) is named


def _anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@each([*PAGES, *ROOT.glob("[A-QS-Z]*.md")])
def test_links_lead_to_files_and_headings_that_are_there(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        file, _, anchor = link.partition("#")
        if file.startswith(("http:", "https:")):
            continue
        there = page.parent / file if file else page
        assert there.exists(), link
        assert not anchor or anchor in _anchors(there), link


def test_the_readme_is_short_and_shows_the_captured_run() -> None:
    readme = (ROOT / "README.md").read_text()
    assert len(readme.split()) <= 1300
    assert pictures.captured(readme) == pictures.excerpt(pictures.captured((ROOT / "docs/demo.md").read_text()))


def test_every_test_that_security_names_exists() -> None:
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", (ROOT / "SECURITY.md").read_text())
    hostile = {file: (ROOT / "tests" / "hostile" / file).read_text() for file, _ in named}
    assert len(named) >= 10
    assert [test for file, test in named if f"def {test}(" not in hostile[file]] == []
