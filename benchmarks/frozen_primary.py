"""A frozen primary under `walproof guard`, on the stand-in over real PostgreSQL, writers at `on` through the service.

`python -m benchmarks.frozen_primary [--repeat 20]`: each drill freezes all of the primary's PostgreSQL (SIGSTOP) while
its instance manager goes on, waits until writes are back and looks for every acknowledged row. Prints the outage and
what was lost of each, and the median; exit 1 where a commit was lost or nothing was taken over. The delays are
the operator's recorded ones; between drills the annotation is removed and the guard started anew, against its rest.

`--minutes 30`: instead, so long in virtual time without a freeze that lasts: each minute one of the disturbances that a
guard must leave alone. Prints how often it wrote anything; exit 1 where it did.
"""

import random
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.command import command
from benchmarks.kubernetes.guarded import Guarded, guarded
from tests.fixtures.kubernetes.port import Port
from tests.fixtures.kubernetes.state import HEALTHY, Cut, Server
from tests.fixtures.kubernetes.target import settled
from tests.fixtures.kubernetes.virtual_guard import World, world
from walproof.machine.clock import RealClock
from walproof.model.waiting import Wait, wait_for
from walproof.targets.cnpg.guard import SERVICE


def drill(under: Guarded) -> tuple[float, int, int]:
    """(outage in seconds, acknowledged commits, lost ones) of one freeze; the Cluster is healthy again afterwards."""
    running, members, writers = under.kubernetes.running, under.kubernetes.members, under.writers
    watched = under.said().count("watching")
    began = time.monotonic()
    running.cnpg.freeze(running.cnpg.state.primary)
    frozen = time.monotonic()
    wait_for(Wait.NEW_LEADER, lambda: writers.acknowledged[-1][1] > frozen + 1.0, RealClock(), times=3)
    time.sleep(2.0)
    outage_s = writers.outage_s(began - 0.5)
    settled(running, members)
    under.forgotten()
    wait_for(Wait.CLUSTER_HEALTHY, lambda: under.watches(watched), RealClock())
    return outage_s, len(writers.acknowledged), under.lost()


DISTURBANCES = (
    "switchover", "roll", "kill", "brief freeze", "standby frozen", "hiccup", "standbys cut off", "standby cut off",
    "slow API", "service away", "slow disk",
)  # fmt: skip


def disturbed(w: World, api: Port, name: str, begins: bool) -> None:
    """Begin it, or end it where it does not end by itself."""
    c, cnpg = w.cnpg.state, w.cnpg
    first, standby = c.primary, next(m.name for m in c.members if m.name != c.primary)
    settings: dict[str, tuple[object, str, object]] = {
        "slow API": (api, "takes_s", 0.7 if begins else 0.0),
        # Nor does a commit end in a long checkpoint: standbys hear answers to their own questions alone.
        "slow disk": (w, "writes", not begins),
        "service away": (w, "deaf", {SERVICE} if begins else set()),
    }
    if name in settings:
        setattr(*settings[name])
    elif not begins:
        for member in c.members:
            cnpg.mend(member.name)
            if member.server is Server.FROZEN:
                cnpg._happens(cnpg.machine.thaw, member.name)
    elif name == "switchover":
        cnpg._happens(cnpg.machine.switch_over, standby)
    elif name == "roll":
        cpu = f"{100 + round(w.clock.now_s) % 100}m"
        cnpg.store.modify("Cluster", "pg", lambda one: one["spec"]["resources"]["requests"].update(cpu=cpu))
    elif name == "kill":
        cnpg.kill(first)
    elif "cut" in name or name == "hiccup":
        cnpg.cut(standby if name == "standby cut off" else first, Cut.PEERS if name == "standbys cut off" else Cut.ALL)
    else:
        cnpg.freeze(first if name == "brief freeze" else standby)


def undisturbed(minutes: int, seed: int) -> int:
    """How often a guard wrote anything, in so many minutes of disturbances."""
    draw = random.Random(seed)
    with world() as w:
        guard, api = w.guard()
        w.run(guard, 20.0, calm=True)
        for _ in range(minutes):
            name = draw.choice(DISTURBANCES)
            lasts_s = {"brief freeze": 1.0, "hiccup": 5.0}.get(name, 20.0)
            disturbed(w, api, name, True)
            w.run(guard, lasts_s, calm=name not in ("brief freeze", "hiccup"))
            disturbed(w, api, name, False)
            w.run(guard, 60.0 - lasts_s, calm=True)
            while w.cnpg.state.phase != HEALTHY:
                w.run(guard, 10.0, calm=True)
            print(f"{name}: {guard.status().suspicions} suspicions, {len(api.writes)} writes", flush=True)
        return len(api.writes)


def main(*, repeat: int = 20, minutes: int = 0, seed: int = 1) -> int:
    """Exit code."""
    if minutes:
        return 1 if undisturbed(minutes, seed) else 0
    outages_s, lost = [], 0
    with tempfile.TemporaryDirectory(prefix="walproof-frozen-") as folder:
        Path(folder).chmod(0o711)
        with guarded(Path(folder)) as under:
            for number in range(1, repeat + 1):
                outage_s, acknowledged, missing = drill(under)
                outages_s.append(outage_s)
                lost += missing
                print(f"{number:3}: writes back after {outage_s:5.2f} s, {missing} lost of {acknowledged}", flush=True)
            print(under.said())
            takeovers = under.said().count("Lease emptied")
    median_s = statistics.median(outages_s)
    print(f"{repeat} drills: median {median_s:.2f} s, worst {max(outages_s):.2f} s, {lost} lost, {takeovers} takeovers")
    return 1 if lost or takeovers < repeat else 0


if __name__ == "__main__":
    command(main)
