"""Commands ended by -9, SIGHUP and SIGTERM at seeded moments: what of them is left, and is anything of others touched?

`python -m benchmarks.killed [--moments 40] [--seed 1] [--verbs NAME,…]`: demo, study, prove --pitfall on labs of their
own; price, prove, apply on a lab that stays up and a pair of servers. After -9 `lab down --all` or `revert` and
`lab fault clear` are run; after SIGHUP and SIGTERM nothing is. What was applied to its end, `apply --undo` undoes.
Nothing else may create labs meanwhile: namespaces and devices are counted on the whole machine.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg
from rich.console import Console
from rich.table import Table

from benchmarks.command import command
from benchmarks.temporary_lab import benchmark_lab
from tests.fixtures.external_cluster import everything, lab_file, opened, pair_file
from tests.fixtures.plain_pair import PlainPair, debian_pair
from tests.fixtures.priced_records import PAIR, advice_file
from walproof.errors import Error
from walproof.lab import home, network_links
from walproof.lab.blueprint import Blueprint
from walproof.lab.create import LabOrder
from walproof.lab.patroni import wait_until_healthy
from walproof.links.devices import NAMESPACES
from walproof.machine.clock import RealClock
from walproof.machine.programs import ip, run
from walproof.model.waiting import Wait, wait_for

MARK = "WALPROOF_KILLED_BENCHMARK"
EARLY = "ended by itself"
SIGNALS = {"-9": signal.SIGKILL, "SIGHUP": signal.SIGHUP, "SIGTERM": signal.SIGTERM}


@dataclass(frozen=True, slots=True)
class Verb:
    """What is run, and until how many seconds after its start it may be ended."""

    name: str
    words: str
    longest_s: float


VERBS = (
    Verb("demo", "demo --budget 4s --port 6300 --lab demo", 26),
    Verb("study", "study run patroni-tradeoff --quick --budget 4s --port 6400", 24),
    Verb("pitfall", "prove --pitfall P1", 20),
    Verb("price, lab", "price --lab {lab} --levels off,on --quorum any1,all --clients 1 --budget 3s --sample 0.5s", 9),
    Verb("prove, lab", "prove --lab {lab} --fault kill,partition --levels on --writers 4", 16),
    Verb("apply, lab", "apply {advice} --lab {lab}", 3),
    Verb(
        "price, external",
        "price --target {pair} --levels off,on --quorum any1 --clients 1 --budget 3s --sample 0.5s --scale 1 "
        "--allow load,config",
        9,
    ),
    Verb("prove, external", "prove --target {pair} --fault none --levels local --writers 2 --allow load", 8),
    Verb("apply, external", "apply {pair_advice} --target {pair} --allow config", 3),
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where it runs: folder, state folder of labs that end with their command, the lab that stays, the pair."""

    folder: Path
    blueprint: Blueprint
    lab: str
    pair: PlainPair
    pair_target: str

    def walproof(self, words: str, *, own_state: bool) -> subprocess.Popen[bytes]:
        """Start walproof with these words, on labs that end with it (own_state) or on the lab that stays."""
        state = self.folder / "state" if own_state else self.blueprint.home.parent
        environment = {**os.environ, MARK: "1", "WALPROOF_STATE": str(state)}
        command = [sys.executable, "-P", "-m", "walproof", *words.split()]
        with (self.folder / "output.log").open("ab") as log:
            log.write(f"\n$ walproof {words}\n".encode())
            return subprocess.Popen(command, cwd=self.folder, env=environment, stdout=log, stderr=log)


def left(place: Place) -> dict[str, list[str]]:
    """Everything there is now that a command may leave, by kind."""
    own = place.folder / "state"
    return {
        "processes": sorted(_processes(place)),
        "namespaces": sorted(os.listdir(NAMESPACES)) if NAMESPACES.is_dir() else [],
        "links": sorted(network_links.device_names()),
        "mounts": [line for line in Path("/proc/mounts").read_text().splitlines() if str(own) in line],
        "loop devices": [
            line for line in run(["losetup", "-l", "-n", "-O", "BACK-FILE"]).splitlines() if str(own) in line
        ],
        "control groups": sorted(str(p) for p in Path("/sys/fs/cgroup").glob("**/walproof/*")),
        "shared memory": sorted(name for name in os.listdir("/dev/shm") if name.startswith(("walproof", "PostgreSQL"))),
        "lab folders": sorted(p.name for p in own.glob("[!.]*") if p.name != "bystander") if own.is_dir() else [],
    }


def _processes(place: Place) -> Iterator[str]:
    marks = (f"{MARK}=1".encode(), f"{home.MARK}={place.folder / 'state'}/".encode())
    for process in psutil.process_iter(["name"]):
        try:
            environment = Path(f"/proc/{process.pid}/environ").read_bytes()
        except OSError:
            continue
        if process.pid != os.getpid() and any(mark in environment for mark in marks):
            yield f"{process.pid} {process.info['name']}"


def settings(place: Place) -> dict[str, object]:
    """Settings, role settings and databases of the pair and of the lab that stays."""
    with opened(place.pair_target) as pair, opened(place.lab) as lab:
        return {"pair": everything(pair), "lab": everything(lab)}


@contextmanager
def bystanders(place: Place) -> Iterator[Callable[[], list[str]]]:
    """What is others': the function names those that are gone or changed."""
    folder = place.folder / "state" / "bystander"
    folder.mkdir(parents=True)
    (folder / "data").write_text("mine")
    sleeper = subprocess.Popen(["postgres", "600000"], executable="/usr/bin/sleep")
    ip("netns", "add", "other-n1")
    ip("link", "add", "wpother0", "type", "bridge")
    place.pair.sql("n1", "CREATE DATABASE walproof_notes")
    place.pair.sql("n1", "ALTER SYSTEM SET work_mem = '7MB'")
    place.pair.sql("n1", "SELECT pg_reload_conf()")

    def harmed() -> list[str]:
        checks = {
            "folder": (folder / "data").read_text() == "mine" if (folder / "data").exists() else False,
            "process": sleeper.poll() is None,
            "namespace": "other-n1" in os.listdir(NAMESPACES),
            "bridge": "wpother0" in network_links.device_names(),
            "setting": place.pair.sql("n1", "SHOW work_mem") == [("7MB",)],
            "database": bool(place.pair.sql("n1", "SELECT 1 FROM pg_database WHERE datname = 'walproof_notes'")),
        }
        return [name for name, whole in checks.items() if not whole]

    try:
        yield harmed
    finally:
        sleeper.kill()
        sleeper.wait()
        ip("netns", "del", "other-n1")
        ip("link", "del", "wpother0")


def ended_at(place: Place, verb: Verb, name: str, after_s: float) -> str:
    """Run the verb, send the signal after that time, clean as a user would; a sentence where an exit code is wrong.

    EARLY where it had ended by itself before the signal.
    """
    own_state = "{" not in verb.words
    advice = {"advice": place.folder / "advice.json", "pair_advice": place.folder / "pair.json"}
    words = verb.words.format(lab=place.blueprint.name, pair=place.pair_target, **advice)
    log = place.folder / "output.log"
    before = log.stat().st_size if log.exists() else 0
    running = place.walproof(words, own_state=own_state)
    wrong = ""
    try:
        code = running.wait(after_s)
        wrong = EARLY if code in {0, 1, 4} else f"{verb.name} ended by itself with {code}"
    except subprocess.TimeoutExpired:
        running.send_signal(SIGNALS[name])
        code = running.wait(180)
        number = SIGNALS[name]
        if code not in {-number, 128 + number}:
            wrong = f"{verb.name} after {name} at {after_s:.2f} s ended with {code}"
    cleaning: list[tuple[str, bool]] = []
    if name == "-9":
        cleaning.append(("lab down --all" if own_state else "revert", own_state))
    # What the command itself reported as applied is no leftover.
    if verb.name.startswith("apply") and b"in effect on" in log.read_bytes()[before:]:
        on = f"--lab {place.blueprint.name}" if "lab" in verb.name else f"--target {place.pair_target} --allow config"
        cleaning.append((f"apply --undo {on}", False))
    if name == "-9" and verb.name == "prove, lab":
        cleaning.append((f"lab fault clear --lab {place.blueprint.name}", False))
    for words, own in cleaning:
        if code := place.walproof(words, own_state=own).wait(300):
            wrong = f"`walproof {words}` after {verb.name} and {name} ended with {code}"
    return wrong


@contextmanager
def place_of(folder: Path) -> Iterator[Place]:
    """A lab that stays up, a pair of servers, and advice to apply to both."""
    advice_file(folder / "advice.json")
    advice_file(folder / "pair.json", cluster=PAIR)
    with ExitStack() as stack:
        blueprint = stack.enter_context(benchmark_lab("killed", LabOrder(port=6200)))
        pair = stack.enter_context(debian_pair())
        yield Place(folder, blueprint, str(lab_file(blueprint, folder)), pair, str(pair_file(pair, folder, named=True)))


def one_moment(
    place: Place, verb: Verb, name: str, after_s: float, before: dict[str, list[str]]
) -> dict[str, list[str]]:
    """What is left by kind after one command was ended; what takes a moment to go may take it (a named wait)."""
    wrong = ended_at(place, verb, name, after_s)
    try:
        wait_until_healthy(place.blueprint, RealClock())
        not_healthy: dict[str, list[str]] = {}
    except Error as error:
        not_healthy = {"lab": [error.message]}

    def more() -> dict[str, list[str]]:
        now = left(place)
        return {kind: extra for kind in now if (extra := sorted(set(now[kind]) - set(before[kind])))}

    try:
        wait_for(Wait.PROGRAM_GONE, lambda: not more(), RealClock(), pace_s=0.1)
        found: dict[str, list[str]] = {}
    except Error:
        found = more()
    return {**found, **not_healthy, **({"exit code": [wrong]} if wrong else {})}


def main(*, moments: int = 40, seed: int = 1, verbs: str = "") -> int:
    """Print every moment, a table of what is left, and one conclusion; exit code 1 when anything is.

    --verbs: only those whose name begins with one of these words.
    """
    draw = random.Random(seed)
    wanted = tuple(word for word in verbs.split(",") if word) or ("",)
    plan = [(v, s) for v in VERBS if v.name.startswith(wanted) for s in SIGNALS]
    draw.shuffle(plan)
    totals: dict[tuple[str, str], list[int]] = {}
    failures = early = 0
    with tempfile.TemporaryDirectory(prefix="walproof-killed-") as name:
        Path(name).chmod(0o711)
        with place_of(Path(name)) as place, bystanders(place) as harmed:
            before, kept = left(place), settings(place)
            for number in range(moments):
                verb, what = plan[number % len(plan)]
                after_s = draw.uniform(0.2, verb.longest_s)
                found = one_moment(place, verb, what, after_s, before)
                early += found.get("exit code") == [EARLY]
                found = {kind: things for kind, things in found.items() if things != [EARLY]}
                try:
                    wait_for(Wait.SETTING_IN_EFFECT, lambda: settings(place) == kept, RealClock(), pace_s=0.3)
                except (Error, psycopg.Error):
                    found["settings"] = _different(kept, settings(place))
                if touched := harmed():
                    found["of others"] = touched
                things = sum(map(len, found.values()))
                totals.setdefault((verb.name, what), []).append(things)
                failures += things
                print(f"{number + 1:3} {verb.name:16} {what:8} {after_s:5.2f} s  {found or 'nothing left'}", flush=True)
            if failures:
                print((Path(name) / "output.log").read_text(errors="replace")[-6000:])
    _print_table(totals)
    print(
        f"{moments} moments, {failures} things left or touched; "
        f"{early} of the commands had ended by themselves before the signal."
    )
    return 1 if failures else 0


def _different(before: object, now: object, where: str = "") -> list[str]:
    """What differs between two trees, by its place."""
    if isinstance(before, dict) and isinstance(now, dict):
        return [line for key in before for line in _different(before[key], now.get(key), f"{where}/{key}")]
    if isinstance(before, list) and isinstance(now, list):
        return [f"{where}: {row}" for row in [*before, *now] if (row in before) != (row in now)]
    return [] if before == now else [f"{where}: {before} {now}"]


def _print_table(totals: dict[tuple[str, str], list[int]]) -> None:
    table = Table(box=None, pad_edge=False, title="things left or touched / moments")
    for heading in ("verb", *SIGNALS):
        table.add_column(heading, justify="left" if heading == "verb" else "right")
    for verb in VERBS:
        cells = (totals.get((verb.name, what)) for what in SIGNALS)
        table.add_row(verb.name, *("" if c is None else f"{sum(c)} / {len(c)}" for c in cells))
    Console().print(table)


if __name__ == "__main__":
    command(main)
