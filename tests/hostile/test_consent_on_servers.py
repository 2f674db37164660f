"""What each verb does to real servers without consent: nothing. The server's own statement log is the witness."""

import json
import re
from pathlib import Path

import pytest

from tests.fixtures.command_line import ended
from tests.fixtures.external_cluster import opened, pair_dsn, pair_file
from tests.fixtures.plain_pair import PlainPair
from tests.fixtures.priced_records import PAIR, advice_file
from walproof.model.guarantee import Level
from walproof.model.waiting import Wait, wait_for
from walproof.watching.canary import Canary, Probe

pytestmark = pytest.mark.lab
WRITES = {"CREATE", "DROP", "ALTER", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "COPY", "COMMENT", "GRANT", "VACUUM"}
STATEMENT = re.compile(r"LOG:  (?:statement|execute [^:]*): +(?:--.*\n\s*)*(\w+)")


@pytest.fixture(scope="module", autouse=True)
def every_statement_is_logged(pair: PlainPair) -> None:
    pair.sql("n1", "ALTER SYSTEM SET log_statement = 'all'")
    pair.sql("n1", "SELECT pg_reload_conf()")


@pytest.fixture
def advice(tmp_path: Path) -> Path:
    return advice_file(tmp_path / "advice.json", cluster=PAIR)


def statements(pair: PlainPair) -> str:
    return (pair.home / "n1.log").read_text()


@pytest.mark.parametrize(
    "words",
    [
        "price --levels local --budget 2s",
        "price --levels local --budget 2s --allow config",
        "price --levels local,on --quorum any1 --budget 2s --allow load",
        "price --tune --limit 5ms --allow load",
        "prove --fault none --levels on",
        "prove --fault stop --levels on --allow load",
        "prove --fault stop --levels on --allow stop",
        "prove --fault stop --levels on --allow load,kill",
        "prove --storm 2 --levels on --allow load",
        "prove --matrix --quick --allow load,kill",
        "prove --fault switchover --levels on --allow load,kill,stop",
        "prove --fault none --levels on --writers 500 --allow load",
        "price --levels local --clients 1,500 --budget 2s --allow load",
        "study run patroni-tradeoff --quick",
        "watch --canary --terminal --duration 1s",
        "watch --canary --terminal --duration 1s --allow load",
        "watch --exporter --port 0 --duration 1s",
        "watch --canary --terminal --duration 1s --levels off,local,on,remote_write,remote_apply --allow canary",
        "apply ADVICE",
        "apply --undo",
    ],
)
def test_a_verb_without_consent_or_beyond_the_caps_writes_nothing(
    pair: PlainPair, advice: Path, tmp_path: Path, own_state: Path, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    before = len(statements(pair))
    target = ("--target", str(pair_file(pair, tmp_path)))
    code, out, err = ended(capsys, [*words.replace("ADVICE", str(advice)).split(), *target])
    assert code == 2, err
    assert "hint: " in err
    assert "--allow" in err or "max_clients" in err
    assert out == ""
    asked = set(STATEMENT.findall(statements(pair)[before:]))
    # A study is refused before it even connects.
    assert asked or words.startswith("study")
    assert asked & WRITES == set()
    assert not list(tmp_path.glob("records*"))


def test_a_dsn_without_a_target_file_is_capped_too(
    pair: PlainPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    before = len(statements(pair))
    words = ["prove", "--fault", "none", "--levels", "on", "--writers", "500", "--allow", "load", "--target"]
    code, _, err = ended(capsys, [*words, pair_dsn(pair, "n1", "n2")])
    assert (code, "max_clients = 64" in err) == (2, True)
    assert "CREATE" not in statements(pair)[before:]


def test_the_canary_slows_down_to_the_rate(pair: PlainPair, tmp_path: Path) -> None:
    file = pair_file(pair, tmp_path)
    file.write_text(file.read_text().replace("[caps]\n", "[caps]\nrate = 0.05\n"))
    probes: list[Probe] = []
    with opened(str(file)) as target:
        canary = Canary(target, (Level.OFF, Level.LOCAL), probes.append)
        wait_for(Wait.PROGRAM_READY, lambda: len(probes) >= 2, target.clock)
        canary.close()
    assert canary._pace_s == 40.0


def test_with_consent_the_writers_stay_below_the_rate(
    pair: PlainPair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = pair_file(pair, tmp_path)
    file.write_text(file.read_text().replace("[caps]\n", "[caps]\nrate = 20\n"))
    words = ["prove", "--fault", "none", "--levels", "local", "--writers", "4", "--allow", "load", "--json"]
    code, out, err = ended(capsys, [*words, "--target", str(file), "--record", str(tmp_path / "rec")])
    assert code == 0, err
    times = [json.loads(line) for line in (tmp_path / "rec" / "events.jsonl").read_text().splitlines()]
    drill = json.loads(out)["drills"][0]
    seconds = max(e["at"] for e in times) - min(e["at"] for e in times)
    assert 4 <= drill["acknowledged"] <= 20 * seconds + 4
    assert pair.sql("n1", "SELECT 1 FROM pg_database WHERE datname = 'walproof_own'") == []
