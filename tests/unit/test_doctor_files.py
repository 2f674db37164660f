"""The doctor on configuration files: each finding at its line, nothing else, and nothing on sound files.

A line of tests/fixtures/files ends with `# ! CHECK…` where an expert finds something; every file is written after real
ones (docs/field-cases.md), with neutral names."""

import json
import re
from pathlib import Path

import pytest

from tests.fixtures.command_line import Run, walproof

__all__ = ["walproof"]

FILES = Path(__file__).parents[1] / "fixtures" / "files"
KINDS = ("patroni", "cnpg", "operators", "postgres", "access")
ALONE = [path for kind in KINDS for path in sorted((FILES / kind).iterdir())]
TOGETHER = sorted((FILES / "together").iterdir())
SOUND = sorted((FILES / "sound").iterdir())
_MARK = re.compile(r"[#;] ! (.*)$")
# pgbouncer.ini has no comments after a value.
MARKS_OF = {
    "pgbouncer-keeps.ini": {
        (5, "pgbouncer-keeps-server"), (6, "pgbouncer-keeps-server"),
        (7, "pgbouncer-waits-for-dead"), (8, "pgbouncer-waits-for-dead"),
    },
}  # fmt: skip


def below(path: Path) -> list[Path]:
    return sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]


def marked(path: Path) -> list[tuple[str, int, str]]:
    """File, line and check of each mark."""
    made = []
    for file in below(path):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            if mark := _MARK.search(line):
                made += [(str(file), number, check) for check in mark[1].split()]
        made += [(str(file), number, check) for number, check in MARKS_OF.get(file.name, ())]
    return sorted(made)


def found(walproof: Run, *words: str) -> tuple[int, list[tuple[str, int, str]], list[dict[str, str]], set[str]]:
    """The exit code, each finding's file, line and check, what was not checked in each cluster, and severities."""
    code, out, err = walproof("doctor", "--json", *words)
    assert "Traceback" not in err
    assert out, err
    clusters = json.loads(out)["clusters"]
    findings = [f for cluster in clusters for f in cluster["findings"]]
    places = [(f["place"]["file"], f["place"]["line"], f["id"]) for f in findings]
    return code, sorted(places), [cluster["not_checked"] for cluster in clusters], {f["severity"] for f in findings}


def names(path: Path) -> str:
    return f"{path.parent.name}-{path.stem}"


@pytest.mark.parametrize("path", [*ALONE, *TOGETHER], ids=names)
def test_what_an_expert_finds_is_found_at_its_line_and_nothing_else(path: Path, walproof: Run) -> None:
    code, places, _, severities = found(walproof, str(path))
    assert places == marked(path)
    assert code == int(bool(severities - {"note"}))


@pytest.mark.parametrize("path", SOUND, ids=names)
def test_nothing_is_found_in_sound_files(path: Path, walproof: Run) -> None:
    code, places, unchecked, _ = found(walproof, str(path))
    assert (code, places) == (0, [])
    assert all(reason for one in unchecked for reason in one.values())


def test_there_are_sixty_files_with_something_to_find() -> None:
    assert len([file for path in (*ALONE, *TOGETHER) for file in below(path) if marked(file)]) >= 60


UNSAFE = FILES / "postgres" / "unsafe.conf"
WARNS = FILES / "patroni" / "ttl-two-minutes.yml"


@pytest.mark.parametrize(("shape", "word"), [("sarif", '"startLine": 10'), ("github", "line=10,"), ("junit", ":10:5")])
def test_the_format_has_the_place_of_each_finding(walproof: Run, shape: str, word: str) -> None:
    """doctor --format."""
    code, out, _ = walproof("doctor", "--format", shape, str(WARNS))
    assert code == 1
    assert word in out
    assert "patroni-ttl-long" in out


def test_what_makes_the_exit_code_1_can_be_chosen(walproof: Run) -> None:
    """doctor --fail-on."""
    assert walproof("doctor", "--fail-on", "error", str(WARNS))[0] == 0
    assert walproof("doctor", "--fail-on", "warning", str(WARNS))[0] == 1
    assert walproof("doctor", "--fail-on", "error", str(UNSAFE))[0] == 1


def test_a_check_is_explained(walproof: Run) -> None:
    """doctor --explain."""
    code, out, _ = walproof("doctor", "--explain", "patroni-not-strict")
    assert code == 0
    for word in ("https://github.com/patroni/patroni/issues/2525", "--pitfall P5", "edit-config"):
        assert word in out
    assert walproof("doctor", "--explain", "no-such-check")[0] == 2
