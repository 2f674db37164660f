"""The proofs the project must show, by `walproof prove` on a lab of its own; prints each with what is required.

Run: `.venv/bin/python -m benchmarks.proof_repeats [NAME …]`; without names all of them, about an hour on two cores.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.command import chosen, command
from walproof.errors import ExitCode

WALPROOF = str(Path(sys.executable).with_name("walproof"))
Drills = Sequence[dict[str, Any]]
DECIDED = ("held", "expected loss", "broken")


@dataclass(frozen=True, slots=True)
class Proof:
    """One thing to show: the options of the command, and what its drills must show."""

    name: str
    options: str
    required: str
    met: Callable[[Drills], bool]


def _decided(drills: Drills) -> Drills:
    return [d for d in drills if d["verdict"] in DECIDED]


def _nothing_lost(drills: Drills) -> bool:
    return len(_decided(drills)) == len(drills) > 0 and all(d["lost"] == 0 for d in drills)


def _rto(drills: Drills) -> float:
    return median(d["rto_s"] if d["rto_s"] is not None else float("inf") for d in drills)


def _lossy(drills: Drills) -> int:
    return sum(d["lost"] > 0 for d in drills)


def _at(drills: Drills, level: str) -> Drills:
    return [d for d in drills if d["level"] == level]


def _within(limit_s: float) -> Callable[[Drills], bool]:
    return lambda drills: _nothing_lost(drills) and _rto(drills) <= limit_s


def _nothing_failed(drills: Drills) -> bool:
    return _nothing_lost(drills) and all(d["unknown"] + d["refused"] + d["downgraded"] == 0 for d in drills)


def _power(drills: Drills) -> bool:
    return _lossy(_at(drills, "remote_write")) >= 3 and _nothing_lost(_at(drills, "on"))


PROOFS = (
    Proof("kill-on", "--fault kill --levels on --repeat 10", "nothing lost, median RTO ≤ 4 s", _within(4)),
    Proof(
        "kill-on-50",
        "--fault kill --levels on --repeat 10 --writers 50 --route pgbouncer",
        "50 clients through PgBouncer: nothing lost, median RTO ≤ 4 s",
        _within(4),
    ),
    Proof(
        "kill-on-200",
        "--fault kill --levels on --repeat 10 --writers 200 --route pgbouncer",
        "200 clients through PgBouncer: nothing lost, median RTO ≤ 4 s",
        _within(4),
    ),
    Proof("kill-off", "--fault kill --levels off --repeat 10", "loss in ≥ 9 of 10", lambda d: _lossy(d) >= 9),
    Proof(
        "partition-local", "--fault partition --levels local --repeat 10", "loss in ≥ 9 of 10", lambda d: _lossy(d) >= 9
    ),
    Proof(
        "double-power",
        "--fault double-power --levels remote_write,on --repeat 6 --writers 64",
        "remote_write loses in ≥ 3 of 6, on never",
        _power,
    ),
    Proof("partition-on", "--fault partition --levels on --repeat 10", "nothing lost, median RTO ≤ 23 s", _within(23)),
    Proof("isolate-on", "--fault isolate --levels on --repeat 10", "nothing lost, median RTO ≤ 23 s", _within(23)),
    Proof("power-on", "--fault power-cut --levels on --repeat 10", "nothing lost, median RTO ≤ 23 s", _within(23)),
    Proof(
        "switchover",
        "--fault switchover --levels on --repeat 10 --route pgbouncer",
        "no failed transaction in 10",
        _nothing_failed,
    ),
)


def _run(proof: Proof, record: Path) -> Drills:
    command = [WALPROOF, "prove", *proof.options.split(), "--json", "--record", str(record)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, 1, 4):
        raise SystemExit(done.returncode)
    drills: Drills = json.loads(done.stdout)["drills"]
    return drills


def main(names: tuple[str, ...] = ()) -> int:
    """Create a lab, run every proof asked for, destroy the lab; 0 when all are met."""
    wanted = [proof for proof in PROOFS if proof.name in chosen(names, (p.name for p in PROOFS))]
    if subprocess.run([WALPROOF, "lab", "up", "--disk", "image"], check=False).returncode:
        return ExitCode.ENVIRONMENT
    unmet = 0
    try:
        for proof in wanted:
            with tempfile.TemporaryDirectory() as folder:
                drills = _run(proof, Path(folder) / "record")
            met = proof.met(drills)
            unmet += not met
            verdicts = {v: sum(d["verdict"] == v for d in drills) for v in (*DECIDED, "undecided", "skipped")}
            counts = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items() if count)
            failed = sum(d["unknown"] + d["refused"] + d["downgraded"] for d in drills)
            print(
                f"{'met    ' if met else 'NOT MET'} {proof.name}: {proof.required}; got {counts}, "
                f"loss in {_lossy(drills)} of {len(drills)}, median RTO {_rto(drills):.1f} s, "
                f"{failed} transactions without success",
                flush=True,
            )
    finally:
        subprocess.run([WALPROOF, "lab", "down"], check=False)
    return 1 if unmet else 0


if __name__ == "__main__":
    command(main)
