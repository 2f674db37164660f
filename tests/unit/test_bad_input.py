"""Everything that can be typed wrongly: its exit code, one sentence, one hint, nothing printed, nothing left behind."""

import shlex
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from tests.fixtures.tiers import each
from walproof.advising.advise import read_advice
from walproof.advising.doctor.accepted import accepting
from walproof.errors import UsageError
from walproof.links.round_trips import read_regions
from walproof.studies.declaration import read_study, studies
from walproof.targets.external.target_file import TargetFile, read_file, read_tree

Run = Callable[[str], tuple[int, str, str]]

PRICE = (
    "--levels on,,off", "--clients ten", "--clients 99999999999999999999", "--clients 300000", "--quorum any0",
    "--rtt soon", "--regions atlantis", "--scale 0", "--mix on=0", "--tune --limit 0ms",
    "--tune --limit 5ms --level local", "--tune --limit 5ms --break-even", "--load -0.5", "--rate 0", "--sample 0",
    "--precision 150%", "--budget nan", "--hold-out --clients 1", "--resume nowhere", "--resume newer",
    "--resume empty", "--record newer", "--colour red",
)  # fmt: skip
PROVE = (
    "--fault earthquake", "--fault ''", "--levels paranoid", "--levels ''", "--victim everyone", "--victim n9",
    "--writers 0", "--repeat x", "--until-bound 0", "--until-bound 200%", "--until-bound nan", "--storm 0",
    "--storm 3 --fault kill", "--matrix --fault kill", "--matrix --victim sync", "--quick", "--require nonsense",
    "--require ''", "--require rpo=-1", "--allow earthquake", "--pitfall P99", "--pitfall ''", "--record newer",
)  # fmt: skip
TARGETS = (
    "sim?colour=red", "sim?lie=tall", "sim?members=99", "nowhere.toml", "'what is this'", "unknown-key.toml",
    "not-toml.toml", "no-dsn.toml", "no-certificate.toml", "'host=127.0.0.1 colour=red'", "postgresql://u@h:port/",
    "'postgresql://u@[::1/db'", "http://", "http://h:notaport",
)  # fmt: skip
OTHERS = (
    "nonsense",
    "study show nowhere",
    "study run nowhere",
    "study run nowhere/study.toml",
    "study run unknown-key/study.toml --target sim",
    "study run unknown-part/study.toml --target sim",
    "study run patroni-tradeoff --budget -3 --target sim",
    "study run patroni-tradeoff --budget nan --target sim",
    "study run patroni-tradeoff --record newer",
    "study run patroni-tradeoff --target unreachable.toml",
    "study run patroni-tradeoff --target unreachable.toml --allow load",
    "study run patroni-tradeoff --target unreachable.toml --allow everything",
    "demo --record newer",
    "demo --budget 0",
    "demo --port 80",
    "report nowhere",
    "report not-a-record",
    "report newer --csv --json",
    "watch not-a-record",
    "watch --target sim --port 99999",
    "watch --target sim --levels paranoid",
    "watch --target sim --quorum -1",
    "watch --target sim --duration -1",
    "watch --target sim --duration nan",
    "watch --target sim --terminal --exporter",
    "watch newer --canary --terminal",
    "advise newer --rpo x",
    "revert not-a-record",
    "restore newer",
    "apply",
    "apply nowhere",
    "lab up --members 0",
    "lab up --members 8",
    "lab up --quorum 3",
    "lab up --members 1 --sync strict",
    "lab up --param work_mem",
    "lab up --port 80",
    "lab up --cpu 0",
    "lab up --wal-volume",
    "lab up --disk image --disk-size tiny",
    "lab fault explode n1",
    "lab fault clear ''",
    "lab down --lab ../other",
    "lab status --lab 'a b'",
    "price --lab ../other",
    "demo --lab ../other",
    "report ''",
    "advise '' --rpo 0",
    "study run patroni-tradeoff --target sim --record ''",
    "price --target sim --record=",
    "help nonsense",
    "lab help nonsense",
    "lab fault kill",
    "lab fault kill n1 n2",
    "lab fault slow-disk n1",
    "lab fault slow-disk n1 --delay soon",
    "lab fault dcs-loss n1",
    "lab fault partition",
    "lab fault partition-one-way n1",
    "lab cut n1",
    "lab up --timeouts slow",
    "lab logs",
    "lab logs n1 --lines 0",
    "lab link --probes 0",
    "lab cpu much",
    "lab down now then",
    "lab psql --member",
    "pric --levels on",
    "price on",
    "price --lab other --target sim",
    "price --tune --dry-run --target sim",
    "prove --pitfall P99 --dry-run",
    "study run",
    "study run patroni-tradeoff --budget soon --target sim",
    "report",
    "report newer --html - --csv",
    "doctor --target sim --json --sarif -",
    "watch --target sim --json --terminal",
    "watch --target sim --print dashboard --json",
    "watch --target sim --duration 0",
    "watch --target sim --duration soon",
    "watch newer --json",
    "watch newer --exporter",
    "advise",
    "advise newer --recipe patroni --json",
    "apply newer",
    "revert newer",
)
NO_LAB = (
    "price", "prove", "price --json", "doctor", "watch --duration 1", "apply --undo", "lab status", "lab status --json",
    "lab link --json", "lab restart n1", "lab switchover --json", "lab psql -c 'select 1'",
    "lab psql --member n1 -- -At", "lab fault kill n1", "lab fault partition-one-way n1 n2",
    "lab fault slow-disk n1 --delay 5ms", "lab fault clear n1 --json", "lab status --lab other", "price --lab other",
    "doctor --lab other --json", "watch --lab other --json", "lab cpu 0.5",
)  # fmt: skip
MACHINE = (
    "price --target unreachable.toml",
    "prove --target unreachable.toml --allow kill",
    "doctor --target unreachable.toml",
    "doctor --target http://127.0.0.1:1",
    "study run patroni-tradeoff --target unreachable.toml --allow load,kill-member",
    "price --target sim --record not-a-record/file/below",
    "prove --target sim --junit not-a-record/file/out.xml",
    "study run patroni-tradeoff --record not-a-record/file/below",
    "demo --record not-a-record/file/below",
    "watch --target sim --host no.such.host.invalid --duration 1",
)
STUDY = 'name = "x"\ntitle = "t"\nsource = "s"\nmachine = "m"\n'
CLAIM = '[[claim]]\nkind = "recovers"\nname = "c"\nsays = "s"\npaper = "p"\ndrill = "nobody"\nwithin_s = 1\n'
FILES = {
    "unknown-key.toml": 'kind = "postgres"\ndsn = "host=127.0.0.1 port=1"\ncolour = "red"\n',
    "not-toml.toml": "kind = [\n",
    "no-dsn.toml": 'kind = "postgres"\n',
    "no-certificate.toml": 'kind = "patroni"\nrest = ["https://127.0.0.1:1"]\n[restapi]\nca_file = "nowhere.pem"\n',
    "unreachable.toml": 'kind = "postgres"\ndsn = "host=127.0.0.1 port=1 user=postgres"\n',
    "unknown-key/study.toml": STUDY + 'colour = "red"\n' + CLAIM,
    "unknown-part/study.toml": STUDY + CLAIM,
    "not-a-record/file": "hello",
    "newer/record.json": '{"format": 99, "walproof": "9.9", "verb": "price", "created": "2030"}',
    "newer/events.jsonl": '{"event": "something new"}\n',
    "empty/events.jsonl": "",
}


def files(folder: Path) -> dict[str, str]:
    """Every file below, with its content."""
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def run(walproof: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Runs a line of walproof in a folder with bad files, where no lab is up."""
    work = tmp_path / "work"
    for name, text in FILES.items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(text)
    monkeypatch.chdir(work)
    monkeypatch.setenv("WALPROOF_LAB", "nolab")
    return lambda line: walproof(*shlex.split(line))


@pytest.mark.parametrize(
    ("code", "line"),
    [
        *((2, f"price --target sim {words}") for words in PRICE),
        *((2, f"prove --target sim {words}") for words in PROVE),
        *((2, f"{verb} --target {words}") for words in TARGETS for verb in ("price", "prove", "doctor")),
        *((2, line) for line in OTHERS),
        *((3, line) for line in NO_LAB),
        *((3, line) for line in MACHINE),
    ],
)
def test_bad_input_is_one_sentence_and_a_hint_and_leaves_nothing(code: int, line: str, run: Run) -> None:
    found, out, err = run(line)
    lines = err.strip().splitlines()
    assert found == code, err
    assert out == ""
    assert len(lines) == 2, err
    assert lines[0].startswith("walproof: ")
    assert lines[1].startswith("  hint: ")
    assert files(Path()) == FILES


def test_advice_that_is_not_there_is_not_taken_for_a_record(run: Run) -> None:
    code, _, err = run("apply missing.json")
    assert (code, err.splitlines()[0]) == (2, "walproof: there is no missing.json")


@pytest.mark.parametrize("verb", ["price", "prove"])
def test_no_part_of_a_password_is_printed_when_a_url_cannot_be_read(verb: str, run: Run) -> None:
    _, out, err = run(f"{verb} --target 'http://me:secret@h:notaport'")
    assert "secret" not in out + err


REGION = "title = ''\nsource = ''\n"
STUDY = (studies()["cnpg-powerflex"] / "study.toml").read_text()
WRONG: dict[str, tuple[Callable[[str], object], str]] = {
    "the region file FILE: sites: field required": (read_regions, REGION),
    "the region file FILE: round_trip.1.rtt: input should be a valid string": (
        read_regions, f"{REGION}sites = ['a']\n[[round_trip]]\nbetween = ['a', 'b']\nrtt = 7\n",
    ),
    "the target file FILE: routes.rw.address: 'b' is not host:port": (
        lambda path: read_file(TargetFile, path), "kind = 'postgres'\nroutes.rw.address = 'b'\n",
    ),
    "FILE: lab.parameters: a study sets numbers and words": (
        lambda path: read_study(Path(path)), STUDY.replace("[lab]\n", "[lab]\nparameters = {work_mem = '/x'}\n"),
    ),
    ".walproof.toml: accept.1.check: field required": (
        lambda path: accepting([], read_tree(Path(path)), date(2026, 1, 1)), "[[accept]]\nreason = 'x'\n",
    ),
    "this is not advice: input should be an object": (lambda path: read_advice(Path(path).read_text()), "[]"),
}  # fmt: skip


@each(WRONG)
def test_the_first_thing_that_is_wrong_with_a_file_is_said_with_its_key(
    says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one form for every kind of file: items count from 1, and no word of the library's own."""
    monkeypatch.chdir(tmp_path)
    reader, text = WRONG[says]
    Path("FILE").write_text(text)
    with pytest.raises(UsageError) as wrong:
        reader("FILE")
    assert wrong.value.message.startswith(says)
