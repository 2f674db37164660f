"""The simulated Patroni writes what a real one wrote, in the same order: traces of a lab (traces.py)."""

import json

import pytest

from tests.guard_simulation.patroni_keys import Times
from tests.guard_simulation.schedule import Fault, Schedule
from tests.guard_simulation.simulate import Simulation
from tests.guard_simulation.traces import NAMES, TRACES, Events, common, of_members, renamed

BEGINS = 3.0
FAULTS = {
    "normal": (),
    "pause": (Fault("pause", "cluster", BEGINS, lasts=6.0),),
    "standby-lost-and-back": (Fault("kill", "n2", BEGINS, lasts=8.0),),
    "switchover": (Fault("switchover", "n1", BEGINS),),
    "leader-killed": (Fault("kill", "n1", BEGINS, lasts=32.0),),
}


def _simulated(faults: tuple[Fault, ...], seed: int) -> Events:
    schedule = Schedule(seed, failsafe=True, interval_s=1000.0, times=Times(loop_wait=1.0), faults=faults)
    run, events = Simulation(schedule, guarded=False), Events()

    def written(key: str, _before: object, after: object, _by: str) -> None:
        if run.world.now >= BEGINS:
            events.append((key, getattr(after, "value", None)))

    run.etcd.written.append(written)
    run.world.run(60.0, lambda: False)
    run.world.close()
    return events


@pytest.mark.parametrize("name", FAULTS)
def test_the_simulated_patroni_writes_what_the_real_one_wrote(name: str) -> None:
    trace = json.loads((TRACES / f"{name}.json").read_text())
    assert bool(trace["common"]) == (name != "normal"), "a trace in which nothing happened"
    others = [n for n in NAMES if n != trace["leader"]]
    found = []
    for seed in range(6):
        events = _simulated(FAULTS[name], seed)
        for second, third in (others, others[::-1]):
            real = {"n1": trace["leader"], "n2": second, "n3": third}
            members = {real[name]: states for name, states in of_members(events, "n1").items()}
            found.append((renamed(common(events), real), members))
    assert (renamed(trace["common"], {}), trace["members"]) in found, f"{trace}\n{found}"
