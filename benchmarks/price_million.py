"""Ten million logged transactions summarised: seconds and megabytes.

`python -m benchmarks.price_million`: writes a log of pgbench's shape (about 350 MB) into a temporary folder, and
reads it in a process of its own, whose peak memory the kernel reports.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.priced_lab import judged

LINES = 10_000_000
READ = """
import json, resource, sys, time
from pathlib import Path
from walproof.load.pgbench_log import summary
from walproof.model.estimate import quantile_ms
started = time.monotonic()
found = summary([Path(sys.argv[1])])
quantiles = [quantile_ms(found.histogram, q) for q in (0.5, 0.95, 0.99)]
took = time.monotonic() - started
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"s": took, "mb": peak, "n": found.transactions, "quantiles": quantiles}))
"""


def write(path: Path) -> None:
    """A log as pgbench writes it: client, number, latency µs, script, end s, end µs."""
    rng = np.random.default_rng(1)
    with path.open("w") as file:
        for part in range(10):
            n = LINES // 10
            latencies = rng.gamma(4, 500, n).astype(np.int64)
            ends = 1_800_000_000_000_000 + np.arange(part * n, (part + 1) * n) * 90
            lines = range(part * n, (part + 1) * n)
            rows = zip(lines, latencies.tolist(), ends.tolist(), strict=True)
            file.writelines(
                f"{i % 16} {i // 16 + 1} {us} 0 {end // 1_000_000} {end % 1_000_000}\n" for i, us, end in rows
            )


def main() -> int:
    """0 when it takes less than 10 s and 500 MB."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.1"
        write(path)
        run = subprocess.run([sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=True)
    found = json.loads(run.stdout)
    p50, p95, p99 = found["quantiles"]
    print(f"{found['n']} transactions; p50 {p50:.3f}, p95 {p95:.3f}, p99 {p99:.3f} ms")
    time_code = judged("seconds", found["s"], "under 10", found["s"] < 10 and found["n"] == LINES)
    return max(time_code, judged("megabytes at peak", found["mb"], "under 500", found["mb"] < 500))


if __name__ == "__main__":
    sys.exit(main())
