"""The gates of `make check` find what they are there to find: each is given a planted violation, and none."""

import ast
import re
from pathlib import Path
from pkgutil import resolve_name

import pytest

from tests.fixtures.tiers import each
from tools import import_circles, ports_only, sizes
from walproof.cli import demo

ROOT = Path(__file__).parent.parent.parent
_STARTS = {f"subprocess.{name}" for name in ("run", "Popen", "check_output", "check_call", "call", "getoutput")}


def test_a_circle_through_an_import_inside_a_function_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = tmp_path / "planted_circle"
    planted.mkdir()
    (planted / "__init__.py").write_text("")
    (planted / "above.py").write_text("from planted_circle import middle\n")
    (planted / "middle.py").write_text("import planted_circle.below\n")
    (planted / "below.py").write_text("def later():\n    from planted_circle.above import middle\n")
    monkeypatch.syspath_prepend(tmp_path)
    circle = [f"planted_circle.{name}" for name in ("above", "middle", "below", "above")]
    assert import_circles.circles("planted_circle") == [tuple(circle)]
    (planted / "below.py").write_text("")
    assert import_circles.circles("planted_circle") == []


def test_what_programs_print_is_never_decoded_strictly() -> None:
    """One byte that is no UTF-8, which a stranger can bring into a log, must not end what walproof does."""
    strict = [
        f"{path}:{call.lineno}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for call in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(call, ast.Call) and ast.unparse(call.func) in _STARTS
        for given in [{word.arg for word in call.keywords}]
        if given & {"text", "universal_newlines", "encoding"} and "errors" not in given
    ]
    assert strict == []


@each([((120, 1, 400), 0), ((1, 1, 401), 1)])
def test_long_files_are_refused(
    lengths: tuple[int, ...], code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, length in enumerate(lengths):
        (tmp_path / f"{number}.py").write_text("\n" * length)
    assert sizes.main(400, [str(tmp_path)]) == code
    assert f"3 files, {sum(lengths)} lines" in capsys.readouterr().out


@each([
    "from walproof.targets.lab.target import LabTarget",
    "from walproof.targets import simulated",
    "def later():\n    import walproof.targets.patroni.target",
    "importlib.import_module('walproof.targets.lab')",
    "isinstance(place, CanBreak)",
    "isinstance(place, (str, ports.CanBreak))",
    "issubclass(kind, CanBreak | Other)",
    "match place:\n    case CanBreak():\n        pass",
    "getattr(target, 'members', ())",
    "hasattr(self.target, 'route')",
    "place.virtual",
])  # fmt: skip
def test_knowing_a_target_by_more_than_its_ports_is_found(source: str) -> None:
    assert len(list(ports_only.violations(ast.parse(source), frozenset({"CanBreak"})))) == 1


@each([
    "from walproof.targets.choose import choose",
    "from walproof.targets.external import consent",
    "from walproof.model.ports import CanBreak\nisinstance(event, SampleDone)",
    "getattr(event, 'at')",
    "target.observe()",
])  # fmt: skip
def test_using_a_target_by_its_ports_is_not(source: str) -> None:
    assert list(ports_only.violations(ast.parse(source), frozenset({"CanBreak"}))) == []


def test_ports_and_classes_of_targets_are_known_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in {
        "model/ports.py": "class CanKill: ...\n",
        "targets/toy/target.py": "class Toy: ...\nisinstance(Toy(), CanKill)\n",
        "proving/run.py": "isinstance(x, CanKill)\nisinstance(x, Toy)\nisinstance(x, int)\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert ports_only.main(tmp_path) == 1
    out = capsys.readouterr().out
    assert "run.py:1: isinstance with CanKill" in out
    assert "run.py:2: isinstance with Toy" in out
    assert out.endswith(": 2\n")


def test_modules_and_files_that_prose_names_are_there() -> None:
    """In backticks: `model.estimate`, `reporting/outline.py`; files below patroni/dcs are Patroni's own."""
    folders = [ROOT / name for name in ("src", "tests", "benchmarks", "tools", "docs")]
    files = [path for folder in folders for path in folder.rglob("*") if path.suffix in (".py", ".md")]
    packages = {path.name for path in (ROOT / "src/walproof").iterdir()}
    named = {name for path in (*files, *ROOT.glob("*.md")) for name in re.findall(r"`([\w/.]+)`", path.read_text())}
    own = {name for name in named if name.endswith(".py") and not name.startswith("patroni/")} - {"cli/VERB.py"}
    modules = {name for name in named - own if "." in name and name.split(".")[0] in packages}
    assert len(own) > 10 and len(modules) > 1
    assert {name for name in own if not any(str(path).endswith(f"/{name}") for path in files)} == set()
    for name in modules:
        resolve_name(f"walproof.{name}")


def test_the_makefile_says_what_the_demo_does() -> None:
    promised = re.search(r"its prices, \w+ drills", demo.demo.help or "")
    assert promised and promised[0] in (ROOT / "Makefile").read_text()
