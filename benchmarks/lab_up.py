"""How long `walproof lab up` takes to three members streaming and synchronous: python -m benchmarks.lab_up [TIMES]."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ALLOWED_S = 15.0


def _walproof(*arguments: str, state: Path) -> float:
    started = time.monotonic()
    environment = {**os.environ, "WALPROOF_STATE": str(state), "WALPROOF_LAB": "bench-up"}
    subprocess.run(
        [sys.executable, "-m", "walproof", "lab", *arguments],
        check=True,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return time.monotonic() - started


def main(times: int = 3) -> int:
    """Print each time and the median; 1 when the median is over what is allowed."""
    ups, downs = [], []
    with tempfile.TemporaryDirectory(prefix="wpb-", dir="/tmp") as folder:
        state = Path(folder)
        state.chmod(0o711)
        for _ in range(times):
            try:
                ups.append(_walproof("up", "--port", "18900", state=state))
            finally:
                downs.append(_walproof("down", state=state))
            print(f"lab up {ups[-1]:.1f} s, lab down {downs[-1]:.1f} s (load {os.getloadavg()[0]:.1f})", flush=True)
    median = statistics.median(ups)
    print(
        f"median lab up {median:.1f} s of {ALLOWED_S:.0f} s allowed; median lab down {statistics.median(downs):.1f} s"
    )
    return 0 if median <= ALLOWED_S else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 3))
