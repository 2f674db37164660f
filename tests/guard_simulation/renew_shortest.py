"""python -m tests.guard_simulation.renew_shortest [WORDS]: find each hand-made mutant anew, and write shortest.py."""

import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from tests.guard_simulation.by_hand import ALL, ByHand, put_in
from tests.guard_simulation.mutants import seeds
from tests.guard_simulation.patroni_keys import Times
from tests.guard_simulation.schedule import Fault, Schedule, draw
from tests.guard_simulation.shortest import SHORTEST
from tests.guard_simulation.shrink import shrink
from tests.guard_simulation.simulate import judge

_HEAD = '''"""The shortest schedule that finds each mutant of by_hand.py. Written by renew_shortest.py."""

from tests.guard_simulation.patroni_keys import Times
from tests.guard_simulation.schedule import Fault, Schedule

__all__ = ["SHORTEST", "Times"]

SHORTEST = {
'''


def _shortest(mutant: ByHand, number: int) -> Schedule | None:
    with put_in(mutant):
        for seed in seeds(number):
            kinds = [v.kind for v in judge(draw(seed)).wrong if v.kind in mutant.finds]
            if kinds:
                found = shrink(draw(seed), kinds[0]).schedule
                faults = tuple(replace(f, at=round(f.at, 1), lasts=round(f.lasts, 1)) for f in found.faults)
                short = replace(found, faults=faults)
                found = short if any(v.kind in mutant.finds for v in judge(short).wrong) else found
                break
        else:
            return None
    return None if judge(found).wrong else found


def _code(value: Any) -> str:
    if isinstance(value, Schedule | Fault | Times):
        named = [(f.name, getattr(value, f.name), f.default) for f in fields(value)]
        named = [(n, v, d) for n, v, d in named if not (n == "times" and v == Times())]
        words = [f"{name}={_code(v)}" for name, v, default in named if v != default and v not in ((), {})]
        return f"{type(value).__name__}({', '.join(words)})"
    if isinstance(value, tuple):
        return f"({', '.join(_code(v) for v in value)}{',' if len(value) == 1 else ''})"
    return repr(value)


def main() -> None:
    """Those whose names hold the words, or those that have none."""
    found = {name: schedule for name, schedule in SHORTEST.items() if name in ALL}
    for name, mutant in ALL.items():
        if " ".join(sys.argv[1:]) in name and (sys.argv[1:] or name not in found):
            schedule = _shortest(mutant, 4000)
            print(f"{'found' if schedule else 'NOT FOUND'}: {name}", flush=True)
            if schedule is not None:
                found[name] = schedule
            lines = [f"    {name!r}: {_code(found[name])},\n" for name in ALL if name in found]
            (Path(__file__).parent / "shortest.py").write_text(_HEAD + "".join(lines) + "}\n")


if __name__ == "__main__":
    main()
