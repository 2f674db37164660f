"""Simulated, without a cluster: coverage of ratios and quantiles, searches, and ten million logged transactions."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.command import judged
from tests.fixtures import known_prices, stalled_prices
from walproof.model.estimate import Estimate
from walproof.model.guarantee import Level
from walproof.pricing.estimates import Blocks, ratio_of

PLATEAUS = (0.90, 0.95, 0.985, 1.0, 1.05)
LINES = 10_000_000
READ = """
import json, resource, sys, time
from pathlib import Path
from walproof.load.pgbench_log import summary
from walproof.model.estimate import quantile_ms
started = time.monotonic()
log = summary([Path(sys.argv[1])])
quantiles = [quantile_ms(log.histogram, q) for q in (0.5, 0.95, 0.99)]
took = time.monotonic() - started
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"s": took, "mb": peak, "n": log.transactions, "quantiles": quantiles}))
"""


def truth(*, runs: int = 400, noise: float = 0.06) -> int:
    """Clusters of known price under nine kinds of noise: how often the ratio's interval covers the truth.

    About two minutes; the run's own functions, early stopping on. The truth is the ratio of totals without end. The
    last column is what the trimmed centre of the block ratios gives. --noise is the spread of a sample of 0.9 s.
    """
    print(f"{runs} runs each; a sample's own spread {noise:.0%}; stop at ± {known_prices.PRECISION:.0%}")
    print(f"{'noise':<28}{'covers':>8}{'blocks':>8}{'±':>8}   trimmed")
    ratio: Callable[[Blocks], Estimate] = lambda blocks: ratio_of(blocks, known_prices.ON, Level.LOCAL)[0]  # noqa: E731
    coverages = []
    for name, kind in known_prices.KINDS.items():
        covered, blocks, half = known_prices.ratio_coverage(kind, ratio, runs, noise)
        trimmed = known_prices.ratio_coverage(kind, known_prices.trimmed_ratio, runs, noise)[0]
        print(f"{name:<28}{covered:>8.1%}{blocks:>8}{half:>8.3f}   {trimmed:.1%}", flush=True)
        coverages.append(covered)
    good = all(0.93 <= covered <= 0.99 for covered in coverages)
    return judged("coverage, lowest", min(coverages), "0.93 to 0.99 in each", good)


def stalls(*, runs: int = 1000) -> int:
    """Which stalls a run of which length covers: length × share of one arm's time in stalls → coverage of the ratio.

    About ten minutes. Stalls of 0.4 or 1 s of one arm; *lasting*: a disturbance of 10 % that lasts over blocks,
    AR(0.5), of both arms or of one. The estimator is the shipped one, the truth the ratio of totals without end.
    Exit code 0 when what docs/statistics.md claims holds: calm, shared, and all stalls from 60 s on, at least 0.93.
    """
    worst = 1.0
    for noise in (0.03, 0.06):
        cases = stalled_prices.cases(noise)
        print(f"{runs} runs each; samples vary by {noise:.0%}; stop at ± {known_prices.PRECISION:.0%} where it says so")
        print(f"{'s per arm':<12}" + "".join(f"{name:>15}" for name in cases))
        for seconds in (*stalled_prices.LENGTHS_S, None):
            covers = {name: stalled_prices.coverage(draw, seconds, runs) for name, draw in cases.items()}
            print(f"{seconds or 'until narrow':<12}" + "".join(f"{c:>15.1%}" for c in covers.values()), flush=True)
            long = [name for name in covers if "lasting" not in name] if (seconds or 0) >= 60 else []
            worst = min(worst, *(covers[name] for name in ("0 %", "lasting, both", *long)))
    return judged("lowest of what is claimed", worst, "at least 0.93", worst >= 0.93)


def quantiles(*, runs: int = 400) -> int:
    """How often the intervals of p50, p95, p99 and p99.9 cover, from 2 to 30 blocks; how often they have no upper end.

    About a minute. Every block is slower or faster as a whole: by 5 or 20 % (one standard deviation).
    """
    print(f"{runs} runs each; covers (no upper end)")
    heads = "".join(f"{'p' + f'{100 * q:g}':>16}" for q in known_prices.QUANTILES)
    print(f"{'blocks differ by':<18}{'blocks':>7}{heads}")
    worst = 1.0
    for weather in (0.05, 0.2):
        for blocks in (2, 3, 5, 10, 30):
            covers, endless = known_prices.quantile_coverage(blocks, weather, runs)
            cells = "".join(f"{f'{c:.1%} ({e:.0%})':>16}" for c, e in zip(covers, endless, strict=True))
            print(f"{f'{weather:.0%}':<18}{blocks:>7}{cells}", flush=True)
            worst = min(worst, *covers)
    return judged("lowest coverage", worst, "at least 0.93", worst >= 0.93)


def searches(*, runs: int = 200, noise: float = 0.05) -> int:
    """Break-even on clusters of known throughput: how many searches claim something false, how many decide.

    Far from the goal, at the lowest plateau, nearly all must decide: those that never do claim nothing false.

    About two minutes: the real search and its pairs, on a target whose samples are a known curve with noise. `on` ends
    below the goal of 99 %, just below it, on it, or above.
    """
    print(f"{runs} searches each, 20 min of simulated time; noise of a sample {noise:.0%}")
    worst, decisive = 0.0, 0.0
    for plateau in PLATEAUS:
        claims = [known_prices.searched(plateau, noise, seed) for seed in range(1, runs + 1)]
        false, decided = (sum(one[i] for one in claims) / runs for i in (0, 1))
        print(f"`on` ends at {plateau:.3f} of local: {false:.1%} false, {decided:.1%} decided", flush=True)
        worst, decisive = max(worst, false), decided if plateau == min(PLATEAUS) else decisive
    decides = judged(f"decided at {min(PLATEAUS):g}", decisive, "at least 0.9", decisive >= 0.9)
    return max(decides, judged("most false claims", worst, "at most 0.05", worst <= 0.05))


def million() -> int:
    """Ten million logged transactions summarised: seconds and megabytes.

    Writes a log of pgbench's shape (about 350 MB) into a temporary folder, and reads it in a process of its own, whose
    peak memory the kernel reports.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.1"
        _write_log(path)
        run = subprocess.run([sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=True)
    log = json.loads(run.stdout)
    p50, p95, p99 = log["quantiles"]
    print(f"{log['n']} transactions; p50 {p50:.3f}, p95 {p95:.3f}, p99 {p99:.3f} ms")
    slow = judged("seconds", log["s"], "under 10", log["s"] < 10 and log["n"] == LINES)
    return max(slow, judged("megabytes at peak", log["mb"], "under 500", log["mb"] < 500))


def _write_log(path: Path) -> None:
    """As pgbench writes it: client, number, latency µs, script, end s, end µs."""
    rng, part = np.random.default_rng(1), LINES // 10
    with path.open("w") as file:
        for first in range(0, LINES, part):
            latencies = rng.gamma(4, 500, part).astype(np.int64).tolist()
            ends = (1_800_000_000_000_000 + np.arange(first, first + part) * 90).tolist()
            file.writelines(
                f"{i % 16} {i // 16 + 1} {us} 0 {end // 1_000_000} {end % 1_000_000}\n"
                for i, us, end in zip(range(first, first + part), latencies, ends, strict=True)
            )
