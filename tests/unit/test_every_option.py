"""Every option of every verb does something, and a test says what.

What no other test tries is tried here: on a simulated cluster, on the records of 1.0.0, on a lab that is not up.
"""

import json
import shlex
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tests.fixtures.command_line import VERBS, Run, walproof
from tests.fixtures.sick import well, with_settings
from tests.fixtures.tiers import each
from walproof.cli import demo as demo_verb
from walproof.cli import doctor as doctor_verb
from walproof.cli import guard as guard_verb
from walproof.cli import lab_cluster, lab_links_and_faults
from walproof.errors import UsageError
from walproof.model.topology import Description
from walproof.records.reader import read

__all__ = ["walproof"]

TESTS = Path(__file__).parents[1]
RECORDS = TESTS / "replay/records"
PRICED = f"{RECORDS}/demo {RECORDS}/price --rpo 0"
PROVED = f"{RECORDS}/prove --years 1000"
APPLIED = f"{RECORDS}/demo --rpo 0 --target sim --dry-run"
PLANNED = "--target sim --dry-run"
ONE_MEMBER = {"kill", "stop", "crash-restart", "kill-member", "freeze", "power-cut", "isolate", "failing-disk"} | {
    "full-disk", "partition-wal", "partition-acks", "pause-replay",
    "hang-postmaster", "hang-manager", "hang-rest",
}  # fmt: skip
"""Faults whose command is one function: what is true of one is true of each."""

Says = Callable[[Any], Any]


def first(key: str) -> Says:
    return lambda out: out["arms"][0][key]


def scenarios(out: Any) -> Any:
    return out["scenarios"]


def names(out: Any) -> Any:
    return [one["configuration"] for one in out["forecasts"]]


def minutes(out: Any) -> Any:
    return out["forecasts"][0]["unavailable_minutes_per_year"]["value"]


TOLD: tuple[tuple[str, str, str, Says], ...] = (
    ("price", PLANNED, "--protocol simple", first("manner")),
    ("price", PLANNED, "--max-tries 3", first("manner")),
    ("price", PLANNED, "--skew zipfian:1.2", first("manner")),
    ("price", PLANNED, "--workload insert", first("workload")),
    ("price", PLANNED, "--route pgbouncer", first("route")),
    ("price", PLANNED, "--steady 2", lambda out: out["cycles"]),
    ("price", PLANNED, "--seed 7", lambda out: out["seed"]),
    ("price", PLANNED, "--wal-volume on,off", scenarios),
    ("price", PLANNED, "--fsync on,off", scenarios),
    ("price", f"{PLANNED} --quorum any1", "--mode strict,degrading", scenarios),
    ("prove", PLANNED, "--until-bound 50%", lambda out: len(out["drills"])),
    ("prove", PLANNED, "--victim standby", lambda out: out["drills"][0]["victim"]),
    ("prove", PLANNED, "--return-order n2,n1,n3", lambda out: out["drills"][0]["return_order"]),
    ("prove", PLANNED, "--route haproxy", lambda out: out["route"]),
    ("prove", PLANNED, "--seed 4", lambda out: [one["level"] for one in out["drills"]]),
    ("prove", f"{PLANNED} --storm 1", "--storm-faults 2", lambda out: len(out["drills"][0]["storm"])),
    ("advise", PRICED, "--read-your-writes", lambda out: len(out["choices"])),
    ("advise", PRICED, "--max-commit-latency 5ms", lambda out: len(out["choices"])),
    ("advise", PRICED, "--level on", lambda out: {one["level"] for one in out["choices"]}),
    ("advise", PRICED, "--min-tps 600", lambda out: len(out["choices"])),
    ("advise", PRICED, "--class payments:rpo=0", lambda out: out["classes"]),
    ("apply", APPLIED, "--choice 2", lambda out: out["choice"]),
    ("forecast", PROVED, "--mode strict,degrading", names),
    ("forecast", PROVED, "--quorum any1,all", names),
    ("forecast", PROVED, "--levels local", names),
    ("forecast", PROVED, "--layout a,b,b", lambda out: out["forecasts"][0]["layout"]),
    ("forecast", PROVED, "--ttl 60s", minutes),
    ("forecast", PROVED, "--loop-wait 30s", minutes),
    ("forecast", PROVED, "--exact-rates", minutes),
    ("forecast", PROVED, "--witness z4", minutes),
    ("forecast", PROVED, "--leader r1/z1", minutes),
    ("forecast", PROVED, "--seed 5", lambda out: out["seed"]),
    ("forecast", PROVED, "--period 720h", lambda out: out["forecasts"][0]["period"]),
)
"""Verb, what else is typed, the option, and what of --json is another with it."""


@pytest.fixture(scope="module")
def without() -> dict[str, Any]:
    """What is told without the option, by what is typed."""
    return {}


@pytest.mark.usefixtures("quick_forecasts")
@each(TOLD)
def test_an_option_changes_what_is_told(
    verb: str, typed: str, option: str, says: Says, walproof: Run, without: dict[str, Any]
) -> None:
    def told(*more: str) -> Any:
        code, out, err = walproof(verb, *typed.split(), *more, "--json")
        assert code in (0, 1), err
        return json.loads(out)

    before = without.get(verb + typed) or told()
    without[verb + typed] = before
    assert says(told(*shlex.split(option))) != says(before)


LABS = [
    path
    for path, verb in VERBS.items()
    if any("--lab" in p.opts for p in verb.params) and path not in {("demo",), ("lab", "up")}
]
MORE = {
    ("advise",): [f"{RECORDS}/demo"],
    ("apply",): [f"{RECORDS}/advice.json"],
    ("study", "run"): ["synchronous-commit", "--allow", "load"],
    ("target", "cnpg"): ["--dry-run"],
    ("salvage",): ["--old", "."],
    ("lab", "logs"): ["n1"],
    ("lab", "restart"): ["n1"],
    ("lab", "fault", "partition"): ["n1"],
    ("lab", "fault", "partition-one-way"): ["n1", "n2"],
    ("lab", "fault", "slow-disk"): ["n1", "--delay", "5ms"],
} | {("lab", "fault", name): ["n1"] for name in ONE_MEMBER}
"""What a verb needs besides its options."""


@each(LABS, whole=True)
def test_lab_names_the_lab(path: tuple[str, ...], walproof: Run) -> None:
    """--lab."""
    typed = [*path, *MORE.get(path, []), "--lab", "else"]
    _, out, err = walproof(*typed)
    if path == ("lab", "fault", "list"):
        assert "available here" in out
    else:
        assert "else" in out + err


CONTEXTS = [path for path, verb in VERBS.items() if any("--context" in p.opts for p in verb.params)]


@each(CONTEXTS, whole=True)
def test_context_names_a_context_of_the_kubeconfig(
    path: tuple[str, ...], walproof: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """--context."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    code, out, err = walproof(*path, *MORE.get(path, []), "--target", "cnpg:default/pg", "--context", "prod-eu")
    assert (code, out) == (2, ""), err
    assert "context prod-eu" in err


class Noted:
    """Stands for whatever a verb would act on; notes each call: the last word of its name and what was given."""

    def __init__(self, **answers: Any) -> None:
        self.calls: dict[str, tuple[Any, ...]] = {}
        self.answers = answers

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            self.calls[name] = (*given, *named.values())
            return self.answers.get(name)

        return call


def test_what_a_lab_is_made_of(walproof: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """lab up --monitoring --timeouts default --cpu 0.5."""
    view = SimpleNamespace(standby_names="", members=(), leader="n1")
    made = SimpleNamespace(name="lab", ports=dict.fromkeys(["leader", "standby", "pgbouncer"], 1), passfile="p")
    create = Noted(create_lab=made)
    monkeypatch.setattr(lab_cluster, "create", create)
    monkeypatch.setattr(lab_cluster, "design", lambda order: order)
    monkeypatch.setattr(lab_cluster, "observe", lambda blueprint: view)
    monkeypatch.setattr(lab_cluster, "status_json", lambda view: {})
    monkeypatch.setattr(lab_cluster, "summary", lambda view: "")
    code, _, err = walproof("lab", "up", "--monitoring", "--timeouts", "default", "--cpu", "0.5", "--json")
    assert code == 0, err
    order, *_, monitored = create.calls["create_lab"]
    assert (order.timeouts, order.cores, monitored is None) == ("default", 0.5, False)


def test_what_is_done_to_a_lab(walproof: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """lab cpu --clear, lab switchover --no-pause, lab fault dcs-loss --json."""
    members = Noted(cores_of=None)
    loaded = SimpleNamespace(load=lambda name: SimpleNamespace(members=("n1", "n2")))
    for module in (lab_cluster, lab_links_and_faults):
        monkeypatch.setattr(module, "home", loaded)
    monkeypatch.setattr(lab_cluster, "members", members)
    assert json.loads(walproof("lab", "cpu", "--clear", "--json")[1]) == {"cores": {"n1": None, "n2": None}}
    assert members.calls["limit_cores"][1:] == (None, None)
    held = Noted(switch="n2")
    monkeypatch.setattr(lab_cluster, "observe", lambda blueprint: SimpleNamespace(leader="n1"))
    monkeypatch.setattr(lab_cluster, "switch_over", held.switch)
    for more, expected in (("--no-pause", False), ("--json", True)):
        assert walproof("lab", "switchover", more)[0] == 0
        assert held.calls["switch"][-1] is expected
    monkeypatch.setattr(lab_links_and_faults, "crashes", Noted())
    done = json.loads(walproof("lab", "fault", "dcs-loss", "--json")[1])
    assert done == {"fault": "dcs-loss", "member": None}


@each([
    ("--delay 5ms", {"delay_s": 0.005}),
    ("--rtt 10ms", {"delay_s": 0.005}),
    ("--jitter 1ms", {"jitter_s": 0.001}),
    ("--loss 1%", {"loss": 0.01}),
    ("--rate 8mbit/s", {"rate_bps": 8e6}),
    ("--regions us-eu", {}),
    ("--probes 7", {}),
])  # fmt: skip
def test_a_link_is_shaped_as_asked(
    option: str, shaped: dict[str, float], walproof: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """lab link."""
    state = SimpleNamespace(links=None, emulator="", pid=0, real_time=True, dead=False)
    links = Noted(state=state, measured=())
    monkeypatch.setattr(lab_links_and_faults, "network_links", links)
    monkeypatch.setattr(lab_links_and_faults, "links_json", lambda state, measured: {})
    lab = SimpleNamespace(load=lambda name: SimpleNamespace(members=("n1", "n2", "n3")))
    monkeypatch.setattr(lab_links_and_faults, "home", lab)
    code, _, err = walproof("lab", "link", *option.split(), "--json")
    assert code == 0, err
    assert links.calls["measured"][1].round_trips == (7 if "--probes" in option else 20)
    assert ("set_all" in links.calls) == ("--regions" in option)
    if shaped:
        change = links.calls["shape"][2]
        assert {name: getattr(change, name) for name in shaped} == shaped


def test_the_demo_prices_and_shows_as_asked(walproof: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """demo --postgres 15 --port 5700 --budget 30s --seed 3 --watch --record there."""
    noted = Noted(run_price=None)
    target = SimpleNamespace(clock=SimpleNamespace(now=lambda: 1.0), describe=lambda: Description("lab", (), {}))
    monkeypatch.setattr(demo_verb, "own_lab", lambda *given: noted.lab(*given) or nullcontext(target))
    monkeypatch.setattr(demo_verb, "_page", lambda *given, wanted: noted.page(wanted) or nullcontext())
    monkeypatch.setattr(demo_verb, "Bench", lambda target, emit, seed: seed)
    monkeypatch.setattr(demo_verb, "run_price", noted.run_price)
    monkeypatch.setattr(demo_verb, "_drills", noted.drills)
    monkeypatch.setattr(demo_verb, "_print_result", noted.printed)
    asked = "--postgres 15 --port 5700 --budget 30s --seed 3 --watch --record there"
    code, _, err = walproof("demo", *asked.split())
    assert code == 0, err
    order = noted.calls["lab"][0]
    assert (order.postgres, order.port, noted.calls["page"]) == ("15", 5700, (True,))
    assert (noted.calls["run_price"][0], noted.calls["run_price"][1].budget_s) == (3, 30.0)
    assert (tmp_path / "there/events.jsonl").is_file()


def test_a_guard_ends_after_its_time_and_says_what_it_did(walproof: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """guard --suspect-after 2s --duration 10ms --dry-run --json."""
    noted = Noted()
    watcher = SimpleNamespace(turn=lambda: None, close=lambda: None, status=lambda: Status(3))
    guarded = SimpleNamespace(name="cnpg:db/pg", guard=lambda *given: noted.opened(*given) or watcher)
    monkeypatch.setattr(guard_verb, "choose_guarded", lambda where: guarded)
    code, out, err = walproof("guard", "--suspect-after", "2s", "--duration", "10ms", "--dry-run", "--json")
    assert (code, json.loads(out)) == (0, {"takeovers": 3}), err
    policy = noted.calls["opened"][0]
    assert (policy.suspect_after_s, policy.dry_run) == (2.0, True)


@dataclass
class Status:
    takeovers: int


def test_a_run_keeps_how_its_load_was_made(walproof: Run, tmp_path: Path) -> None:
    """price --rate 100 --init tables.sql --tables existing --driver true."""
    (tmp_path / "tables.sql").write_text("select 1;")
    run = "price --target sim --budget 1s --levels local,on --clients 1 --rate 100 --init tables.sql --record r --json"
    code, out, err = walproof(*run.split())
    assert code == 0, err
    assert json.loads(out)["arms"][0]["tps"]["high"] <= 100
    started = read(tmp_path / "r").started
    assert started is not None
    assert started.question["init"] == "tables.sql"
    dry = json.loads(walproof("price", "--target", "sim", "--driver", "/bin/true", "--dry-run", "--json")[1])
    assert dry["arms"][0]["workload"] == "/bin/true"


@each(["price", "prove", "study run"])
def test_load_comes_from_as_many_pods_of_the_image_as_asked(
    verb: str, walproof: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--load-image registry/walproof:1 --load-pods 2: the target is chosen with them."""
    typed = verb.split()
    module = {"price": "price", "prove": "prove", "study": "study"}[typed[0]]
    noted = Noted()

    def chosen(where: str) -> None:
        noted.where(where)
        raise UsageError("chosen", "no more")

    monkeypatch.setattr(f"walproof.cli.{module}.choose", chosen)
    named = ["synchronous-commit"] if verb == "study run" else []
    more = ["--target", "cnpg:default/pg", "--load-image", "registry/walproof:1", "--load-pods", "2", "--allow", "load"]
    assert walproof(*typed, *named, *more)[2].startswith("walproof: chosen")
    assert noted.calls["where"] == ("cnpg:default/pg?load-image=registry/walproof:1&load-pods=2",)


def test_so_many_storms_are_tried_for_the_fewest_faults(walproof: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """prove --shrink 2."""
    noted = Noted(tried=[])
    monkeypatch.setattr("walproof.cli.prove.shrink_storms", noted.tried)
    typed = "prove --target sim --storm 1 --shrink 2 --levels on --json --record r"
    code, _, err = walproof(*typed.split())
    assert code in (0, 4), err
    assert noted.calls["tried"][-1] == 2


def test_advice_is_for_an_environment_and_written_as_files(walproof: Run, tmp_path: Path) -> None:
    """advise --rtt 0.1ms --workload tpcb-like --out there; apply --rtt, --workload of a record in the same words."""
    code, _, err = walproof("advise", *PRICED.split(), "--rtt", "0.1ms", "--workload", "tpcb-like", "--out", "there")
    assert code == 0, err
    assert "walproof-patroni.yaml" in {file.name for file in (tmp_path / "there").iterdir()}
    for verb, priced in (("advise", PRICED), ("apply", APPLIED)):
        for option in ("--rtt 9ms", "--workload insert"):
            assert "there are: tpcb-like, rtt 0.1 ms" in walproof(verb, *priced.split(), *option.split())[2]


def test_the_doctor_lists_its_checks_and_writes_for_ci(
    walproof: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """doctor --list; --sarif and --junit FILE."""
    assert "fsync-off" in walproof("doctor", "--list")[1]
    able = SimpleNamespace(inspection=SimpleNamespace(facts=lambda: with_settings(well(), "n1", fsync="off")))
    monkeypatch.setattr(doctor_verb, "choose", lambda where: SimpleNamespace(name="x", capabilities=lambda: able))
    code, _, err = walproof("doctor", "--sarif", "a.sarif", "--junit", "b.xml")
    assert code == 1, err
    assert "fsync-off" in (tmp_path / "a.sarif").read_text()
    assert "fsync-off" in (tmp_path / "b.xml").read_text()


def test_watch_prints_rules_and_a_dashboard(walproof: Run) -> None:
    """watch --print."""
    assert "groups" in yaml.safe_load(walproof("watch", "--print", "rules")[1])
    assert "panels" in json.loads(walproof("watch", "--print", "dashboard")[1])
