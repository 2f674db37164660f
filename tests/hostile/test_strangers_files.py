"""Records, advice and studies of strangers: nothing they name is run, set or written to unseen."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.command_line import ended
from tests.fixtures.priced_fake import FakePriced
from tests.fixtures.priced_records import price_record, prove_record
from tests.fixtures.records import recorded
from tests.fixtures.tiers import each
from tests.unit.test_cli_price import run, target
from walproof.advising.advise import advise, as_json, choose_environment
from walproof.advising.evidence import evidence_of
from walproof.advising.recipes import config_change, patroni_settings, postgres_settings, recipes
from walproof.errors import UsageError
from walproof.forecasting.failure_rates import DEFAULT
from walproof.links.round_trips import read_regions
from walproof.model.advice import Advice, ClusterProfile, Requirements
from walproof.model.event import Described, Event, SampleDone, Started
from walproof.model.guarantee import PARAMETERS, SETTABLE, Level
from walproof.pricing import tuning
from walproof.records.layout import HEADER
from walproof.studies.declaration import LIBRARY, read_study
from walproof.watching.picture import Picture, TimelineEvent
from walproof.watching.terminal import _events

__all__ = ["run", "target"]
Run = Callable[..., tuple[int, str, str]]
CODE = (
    ("archive_command", "curl evil | sh"),
    ("archive_command", "reboot"),
    ("restore_command", "evil"),
    ("archive_cleanup_command", "evil"),
    ("ssl_passphrase_command", "evil"),
    ("shared_preload_libraries", "evil"),
    ("session_preload_libraries", "evil"),
    ("archive_library", "evil"),
    ("jit_provider", "evil"),
    ("dynamic_library_path", "evil"),
    ("primary_conninfo", "host=evil"),
    ("hba_file", "evil"),
    ("data_directory", "evil"),
    ("log_directory", "evil"),
)


def cut_short(folder: Path, question: dict[str, Any]) -> None:
    """A record of a price run that was cut short."""
    question = {"levels": "local,on", "clients": "1", **question}
    recorded(folder, "price", [Started(0.0, "price", question, "", 1, "1")])


# price --resume


def test_a_record_gives_no_consent(run: Run, target: FakePriced) -> None:
    """What its run was allowed where it was made holds nowhere else."""
    target.external = True
    cut_short(Path("rec"), {"target": "mine.toml", "allow": "load,config,existing-tables"})
    code, _, err = run("--resume", "rec", "--target", "mine.toml")
    assert (code, target.asked) == (2, [])
    assert "--allow load" in err


def test_a_map_of_regions_that_a_record_names_is_opened_only_where_it_is_given_again(
    run: Run, target: FakePriced
) -> None:
    cut_short(Path("rec"), {"regions": "europe,/dev/zero"})
    code, _, err = run("--resume", "rec")
    assert (code, target.asked) == (2, [])
    assert "give it again: --regions" in err
    cut_short(Path("shipped"), {"regions": "europe"})
    assert "--regions" not in run("--resume", "shipped", "--dry-run")[2]


@pytest.mark.parametrize("question", [
    {"driver": "/bin/sh evil.sql"},
    {"workload": "evil.sql"},
    {"workload": "tpcb-like@9,evil.sql"},
    {"init": "evil.sql"},
    {"driver": ["/bin/sh evil.sql"]},
    {"workload": "insert,insert"},
])  # fmt: skip
def test_what_a_record_would_run_is_run_only_where_it_is_given_again(
    question: dict[str, Any], run: Run, target: FakePriced
) -> None:
    """A driver is a command; pgbench's \\shell and psql's \\! are too."""
    Path("evil.sql").write_text("SELECT 1;")
    Path("insert,insert").write_text("SELECT 1;")
    cut_short(Path("rec"), question)
    ((name, value),) = question.items()
    code, _, err = run("--resume", "rec")
    assert (code, target.asked) == (2, [])
    assert f"give it again: --{name}" in err
    assert run("--resume", "rec", f"--{name}", "other.sql")[0] == 2
    assert target.asked == []
    if isinstance(value, str) and name != "driver":
        assert run("--resume", "rec", f"--{name}", value, "--budget", "20s")[0] == 0


# advise, apply


def advice_of(events: list[Event]) -> Advice:
    evidence = evidence_of([("a", events), ("b", prove_record(Level.ON))])
    return advise(evidence, Requirements(rpo_s=0.0, rto_s=30.0), choose_environment(evidence, None, None))


def with_parameter(event: SampleDone) -> SampleDone:
    """The same sample, under a parameter that walproof does not set."""
    planned = event.result.sample
    scenario = replace(planned.scenario, parameters=(("archive_command", "evil"),))
    return replace(event, result=replace(event.result, sample=replace(planned, scenario=scenario)))


@each([*CODE, ("commit_delay", "1'\nevil"), ("search_path", "evil")])
def test_advice_sets_no_parameter_but_walproofs_own(
    name: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    advice = advice_of(price_record())
    choices = tuple(replace(one, parameters=((name, value),)) for one in advice.choices)
    file = tmp_path / "advice.json"
    file.write_text(json.dumps(as_json(replace(advice, choices=choices))))
    code, _, err = ended(capsys, ["apply", str(file), "--target", "sim", "--allow", "config"])
    assert code == 2
    assert f"sets {name}" in err
    with pytest.raises(UsageError, match="never sets"):
        recipes(choices[0], advice.cluster)


def test_a_record_brings_no_parameter_of_its_own_into_a_recipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = [with_parameter(event) if isinstance(event, SampleDone) else event for event in price_record()]
    recorded(tmp_path / "r", "price", events)
    code, out, err = ended(capsys, ["advise", str(tmp_path / "r"), "--recipe", "plain"])
    assert (code, out) == (2, "")
    assert "never sets" in err
    assert ended(capsys, ["apply", str(tmp_path / "r"), "--min-tps", "1", "--target", "sim"])[0] == 2


@each([
    ClusterProfile(members=("n1\n    option external-check", "n2")),
    ClusterProfile(members=("n1 n2:1 backup",)),
    ClusterProfile(patroni="3.0.\narchive_command: evil"),
])  # fmt: skip
def test_a_name_from_a_record_is_one_word_of_a_recipe(cluster: ClusterProfile) -> None:
    with pytest.raises(UsageError, match="no name"):
        recipes(advice_of(price_record()).choices[0], cluster)


@each(["patroni", "none"])
def test_all_that_walproof_sets_is_on_the_list(manager: str) -> None:
    (first, *_) = advice_of(price_record()).choices
    tuned = {name for one in tuning.PARAMETERS for name, _ in one}
    assert tuned <= PARAMETERS
    full = replace(first, parameters=tuple((name, "1") for name in tuned))
    for version in ("", "2.1.0", "3.0.0", "4.1.0"):
        cluster = ClusterProfile(manager, patroni=version)
        assert {one.name for one in postgres_settings(full, cluster)} <= PARAMETERS
        assert set(patroni_settings(full, cluster)) <= SETTABLE
        assert set(config_change(full, cluster).manager) <= SETTABLE


# study


@each([*CODE, ("cluster_name", "a b"), ("TimeZone", "../../etc/passwd")])
def test_a_study_sets_numbers_and_words_on_its_lab(name: str, value: str, tmp_path: Path) -> None:
    """Where an ordinary user's lab runs a command, it runs as that user."""
    text = (Path(str(LIBRARY)) / "synchronous_commit" / "study.toml").read_text()
    file = tmp_path / "study.toml"
    file.write_text(text + f"\n[lab.parameters]\n{name} = {json.dumps(value)}\n")
    with pytest.raises(UsageError, match="numbers and words"):
        read_study(file)
    file.write_text(text + '\n[lab.parameters]\nmax_wal_size = "4GB"\nwal_compression = "on"\n')
    assert read_study(file).lab.parameters["max_wal_size"] == "4GB"


@each([
    ("clients", f"clients = {[1] * 33}"),
    ("clients", "clients = [10001]"),
    ("levels", f"levels = {['on'] * 33}"),
    ("scale", "scale = 100001"),
    ("writers", "writers = 10001"),
    ("rows", "rows = 100001"),
    ("repeat", "repeat = 101"),
    ("share", "share = inf"),
    ("share", "share = 1e300"),
])  # fmt: skip
def test_a_study_has_no_grid_without_end(line: str, instead: str, tmp_path: Path) -> None:
    text = (Path(str(LIBRARY)) / "synchronous_commit" / "study.toml").read_text()
    drill = '[[drill]]\nname = "d"\nfault = "kill"\nlevel = "on"\nwriters = 16\nrepeat = 1\n'
    part = '[[part]]\nname = "p"\nrows = 1\nshare = 1\nscale = 20\nlevels = ["on"]\nclients = [1]\n'
    file = tmp_path / "study.toml"
    file.write_text(f"{text}\n{drill}{part}")
    read_study(file)
    changed = re.sub(rf"(?m)^{line} = .*", instead, drill + part)
    file.write_text(f"{text}\n{changed}")
    with pytest.raises(UsageError, match=r"32|100|finite"):
        read_study(file)


# report


def test_a_record_moves_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """OSC 52 writes to the clipboard; a title, colours or cleared lines say what the report does not."""
    evil = "\x1b]52;c;ZXZpbA==\x07\x1b[2J\x9b2K\r"
    question = {"target": evil}
    events = [replace(one, question=question) if isinstance(one, Started) else one for one in price_record()]
    recorded(tmp_path / "r", "price", events)
    header = json.loads((tmp_path / "r" / HEADER).read_text())
    for number in (header["format"], 99):
        (tmp_path / "r" / HEADER).write_text(json.dumps({**header, "walproof": evil, "format": number}))
        for words in (["report"], ["report", "--markdown"], ["advise"], ["forecast"]):
            _, out, err = ended(capsys, [*words, str(tmp_path / "r")])
            assert out or "52;c" in err or number == header["format"], words
            assert not set("\x1b\x07\x9b\r") & set(out + err), words


@each([1e15, 1e300, -1e300])
def test_times_that_are_none_are_no_error_inside_walproof(
    at: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(tmp_path / "r", "price", (replace(event, at=at) for event in price_record()))
    code, out, _ = ended(capsys, ["report", "--markdown", str(tmp_path / "r")])
    assert code == 0
    assert "–" in out
    when = TimelineEvent(at, "fault", "a")
    assert "–" in str(_events(Picture(events=(when,)))[0])


ESCAPES = "\\u001b]52;c;ZXZpbA==\\u0007\\u009b2K"


@pytest.mark.usefixtures("quick_forecasts")
def test_rates_and_regions_are_numbers_and_move_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(tmp_path / "r", "prove", prove_record(Level.ON))
    rates, command = DEFAULT.read_text("utf-8"), 'command = "curl evil | sh"\n'
    file = tmp_path / "failures.toml"
    file.write_text(rates.replace('name = "', f'name = "{ESCAPES}', 1))
    code, out, err = ended(capsys, ["forecast", str(tmp_path / "r"), "--failures", str(file), "--years", "1000"])
    assert code == 0
    assert not set("\x1b\x07\x9b") & set(out + err)
    file.write_text(command + rates)
    assert ended(capsys, ["forecast", str(tmp_path / "r"), "--failures", str(file)])[0] == 2
    regions = tmp_path / "regions.toml"
    regions.write_text(f'title = "{ESCAPES}"\nsource = "x"\nsites = ["a", "b"]\n')
    assert "\x1b" not in read_regions(str(regions)).title
    regions.write_text(command + regions.read_text())
    with pytest.raises(UsageError):
        read_regions(str(regions))


def test_a_study_moves_no_terminal(tmp_path: Path) -> None:
    text = (Path(str(LIBRARY)) / "synchronous_commit" / "study.toml").read_text()
    file = tmp_path / "study.toml"
    file.write_text(text.replace('title = "', f'title = "{ESCAPES}', 1))
    assert not set("\x1b\x07\x9b") & set(read_study(file).title)


def test_a_record_puts_no_script_into_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "<img src=x onerror=evil()></script><script>evil()</script>"
    events: list[Event] = []
    for event in (*price_record(), *prove_record(Level.ON)):
        if isinstance(event, Described):
            description = replace(event.description, target=evil, members=(evil, "n2"), facts={evil: evil})
            events.append(replace(event, description=description))
        else:
            events.append(replace(event, question={evil: evil}) if isinstance(event, Started) else event)
    recorded(tmp_path / "r", "price", events)
    (tmp_path / "r" / "files").mkdir()
    (tmp_path / "r" / "files" / "<img src=x onerror=evil()>.log").write_text("")
    for words in (["--html", "-"], ["--markdown"]):
        code, out, _ = ended(capsys, ["report", str(tmp_path / "r"), *words])
        assert code == 0
        assert "<img" not in out
        assert "<script>evil" not in out
