"""Whether `walproof observe` is right, and what it costs: `python -m benchmarks.observe_true`, an hour and a half.

What is true is how long the server took for END (its log, every fifth), less the same at `off` with as many clients
at the same rate (`-R`): at its own rate `off` saturates the processors, which lengthens its END. pgbench's own latency
of END holds, besides, how long pgbench waited for a processor to read the answer on: on a busy machine as much again.
What a prediction is made from is measured right before and right after what it is compared with, since disks get
faster and slower from one minute to the next by more than is asked. With `--flush-ms 1` each member has a disk of its
own whose every flush takes 1 ms, in memory: so that what is wrong by itself is told from what this machine's disk does.

Each load and each minute goes into the file `--kept` as it ends, and the tables are of all that is in there: the same
command goes on where it was interrupted, more --rounds or --minutes add to that, 0 of both print it. Begin a new file
for a new version. Exit 1 when a figure is surely missed, 4 when its interval leaves that open.
"""

import json
import math
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal

import numpy as np

from benchmarks.command import command
from benchmarks.observe_loads import LOADS, NUMBERS, Done, Run, measured, minute, prepare
from benchmarks.steady_disks import steady_postgres
from benchmarks.temporary_lab import benchmark_target
from walproof.errors import Error, ExitCode
from walproof.estimating.intervals import as_ratio, t_interval
from walproof.estimating.observed_prices import Predicted, predictions
from walproof.estimating.observed_waits import Cause, observation
from walproof.model.estimate import Estimate
from walproof.model.observed_waits import WaitsSeen
from walproof.records.codec import decode, encode
from walproof.targets.lab.target import LabTarget


class Kept:
    """What is done, one line of JSON each, in a file that grows: a line that a kill cut off is left out."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.loads: dict[tuple[int, str], Done] = {}
        self.minutes: dict[int, dict[str, Any]] = {}
        of = {load.text: load for load in LOADS}
        for line in path.read_text().splitlines() if path.exists() else ():
            with suppress(ValueError):
                raw = json.loads(line)
                if "minute" in raw:
                    self.minutes[raw.pop("minute")] = raw
                elif load := of.get(raw["load"]):
                    before = raw["before"] and _run(raw["before"])
                    self.loads[raw["round"], load.text] = Done(load, _run(raw["run"]), raw["off_ms"], before)

    def add_load(self, number: int, one: Done) -> None:
        self.loads[number, one.load.text] = one
        before = one.before and _raw(one.before)
        self._add(
            {"round": number, "load": one.load.text, "run": _raw(one.run), "off_ms": one.off_ms, "before": before}
        )

    def add_minute(self, number: int, figures: dict[str, Any]) -> None:
        self.minutes[number] = figures
        self._add({"minute": number, **figures})

    def _add(self, raw: dict[str, Any]) -> None:
        with self._path.open("a") as file:
            file.write(f"\n{json.dumps(raw)}\n")


def _raw(one: Run) -> dict[str, Any]:
    return {"seen": [encode(seen) for seen in one.seen], **{name: getattr(one, name) for name in NUMBERS}}


def _run(raw: dict[str, Any]) -> Run:
    seen = [event for line in raw.pop("seen") if isinstance(event := decode(line)[0], WaitsSeen)]
    return Run(seen, **raw)


def observe_true(
    *,
    part: Literal["all", "true", "cost"] = "all",
    kept: Path = Path("observe_true.jsonl"),
    rounds: int = 1,
    minutes: int = 5,
    seconds: float = 70.0,
    flush_ms: float = 0.0,
    port: int = 7200,
) -> int:
    """Run what is not kept yet, then print what must be shown of all that is.

    flush_ms: of members whose disks are not the machine's, and steady (`steady_disks`); 0: the machine's disk.
    """
    have = Kept(kept)
    loads = [(n, load) for n in range(rounds) for load in LOADS if part != "cost" and (n, load.text) not in have.loads]
    blocks = [n for n in range(minutes) if part != "true" and n not in have.minutes]
    if loads:
        with _prepared("observe-true", port, flush_ms) as target:
            for number, load in loads:
                try:
                    have.add_load(number, measured(target, load, seconds))
                except (Error, OSError, ValueError, subprocess.SubprocessError) as wrong:
                    print(f"FAILED: {load.text}: {wrong}", flush=True)
                else:
                    print(f"{kept}: {load.text}", flush=True)
    if blocks:
        with _prepared("observe-cost", port, flush_ms) as target, tempfile.TemporaryDirectory() as folder:
            for number in blocks:
                have.add_minute(number, minute(target, number, Path(folder) / f"{number}"))
                print(f"{kept}: minute {number}", flush=True)
    done = list(have.loads.values())
    _print_loads(done)
    figures = [*_true_figures(done), *_cost_figures(list(have.minutes.values()))]
    words = {0: "met", 1: "NOT MET", ExitCode.UNDECIDED: "undecided"}
    _print("must show | limit | measured | ", [(*texts, words[code]) for *texts, code in figures])
    codes = [code for *_, code in figures]
    return 1 if 1 in codes else max(codes, default=1)


@contextmanager
def _prepared(name: str, port: int, flush_ms: float) -> Iterator[LabTarget]:
    """A lab with pgbench's tables, on the machine's disk or on steady ones."""
    with ExitStack() as stack:
        programs = stack.enter_context(steady_postgres(flush_ms)) if flush_ms else None
        made = benchmark_target(name, port=port, in_memory=programs is not None, programs=programs)
        target = stack.enter_context(made)
        prepare(target)
        yield target


Figure = tuple[str, str, str, int]
"""What, its limit, what was measured, the exit code."""


def _true_figures(done: list[Done]) -> Iterator[Figure]:
    if not done:
        return
    right, named, compared = _right(done), _named(done), _compared(done)
    different = len({one.load.text for one in done})
    yield "loads", "at least 24", f"{different}, {len(done)} runs", int(different < 24)
    least = "22 of 24"
    yield "waits within 10 % or 0.1 ms of END less that at `off`", least, *_share(right, 22 / 24)
    yield "the true cause named first", least, *_share([one for one in named if one is not None], 22 / 24)
    inside = [ok for _, one, truth, ratio in compared for ok in _inside(one, truth, ratio)]
    yield "predicted waits and throughputs inside their intervals", "9 of 10", *_share(inside, 0.9)
    widths = [one.commit_wait_ms.half_width / one.commit_wait_ms.value for _, one, _, _ in compared] or [math.nan]
    text = f"median {median(widths):.2f}, widest {max(widths):.2f}"
    yield "half width of a predicted wait, of itself", "at most 0.25 each", text, int(not max(widths) <= 0.25)


def _share(good: Sequence[bool], least: float) -> tuple[str, int]:
    return f"{sum(good)} of {len(good)}", int(not good or fmean(good) < least)


def _cost_figures(minutes: list[dict[str, Any]]) -> Iterator[Figure]:
    if not minutes:
        return
    share, own = (fmean(one[name] for one in minutes) for name in ("session", "own"))
    pairs = [ratio for one in minutes for ratio in one["log_ratios"]]
    text = f"{share:.4f} (its process, on whichever machine: {own:.4f})"
    yield "processors its session takes on the server", "below 0.01", text, int(share >= 0.01)
    ratio = as_ratio(t_interval(np.array(pairs)))
    code = 0 if ratio.low >= 0.99 else 1 if ratio.high < 0.99 else int(ExitCode.UNDECIDED)
    text = f"{ratio.value:.3f} ({ratio.low:.3f}–{ratio.high:.3f}), {len(pairs)} pairs of 3 s"
    yield "throughput beside it over that without, 64 clients", "at least 0.99", text, code


def _right(done: list[Done]) -> list[bool]:
    """Whether waits are within 10 % or 0.1 ms."""
    waits = [(one.truth_ms, observation(one.run.seen).commit_wait_ms.value) for one in done]
    return [abs(ms - truth_ms) <= max(0.1, 0.1 * truth_ms) for truth_ms, ms in waits]


def _first(one: Done) -> Cause:
    return observation(one.run.seen).longest_first[0]


def _named(done: list[Done]) -> list[bool | None]:
    """Whether a true cause is named first; None where the load does not say what is true."""
    return [_first(one) in one.load.causes if one.load.causes else None for one in done]


def _compared(done: list[Done]) -> list[tuple[Done, Predicted, float, float]]:
    """Predictions, with the wait in ms and the ratio of throughputs that were measured."""
    return [
        (one, predicted, one.truth_ms, one.run.tps / one.before.tps)
        for one in done
        if one.before
        for predicted in predictions(one.before.seen)
        if predicted.what == one.load.predicted[1] and not predicted.unknown
    ]


def _inside(one: Predicted, truth_ms: float, ratio: float) -> tuple[bool, bool]:
    return one.commit_wait_ms.covers(truth_ms), one.throughput.covers(ratio)


def _print_loads(done: list[Done]) -> None:
    rows = []
    for one, right, named in zip(done, _right(done), _named(done), strict=True):
        made = observation(one.run.seen)
        first = f"{_first(one)}{'' if named is None else ' ✓' if named else ' WRONG'}"
        waits = f"{_text(made.commit_wait_ms)}{' ✓' if right else ' WRONG'}"
        rates = f"{one.run.tps:.0f}", f"{made.commits_per_s.value:.0f}"
        rows.append((one.load.text, f"{one.truth_ms:.2f}", f"{one.run.client_ms:.2f}", waits, first, *rates))
    _print("load | END less that at off, ms | END, pgbench | waits, observed | first | tps | commits/s", rows)
    predictions = []
    for one, predicted, truth_ms, ratio in _compared(done):
        marks = [" ✓" if ok else " OUTSIDE" for ok in _inside(predicted, truth_ms, ratio)]
        found = (f"{_text(predicted.commit_wait_ms)}{marks[0]}", f"{_text(predicted.throughput)}{marks[1]}")
        predictions.append(
            (f"{one.load.text}: {predicted.what}", f"{truth_ms:.2f}", found[0], f"{ratio:.2f}", found[1])
        )
    _print("predicted | waits, ms | predicted | throughput over that before | predicted", predictions)


def _text(one: Estimate) -> str:
    return f"{one.value:.2f} ({one.low:.2f}–{one.high:.2f})"


def _print(heads: str, rows: Sequence[tuple[str, ...]]) -> None:
    """A table of Markdown."""
    lines = [f"| {heads} |", "|---" * len(heads.split("|")) + "|", *(f"| {' | '.join(row)} |" for row in rows)]
    print("\n".join(lines) + "\n", flush=True)


if __name__ == "__main__":
    command(observe_true)
