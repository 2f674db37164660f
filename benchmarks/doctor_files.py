"""How long the doctor takes for many files: python -m benchmarks.doctor_files. Its text is what users read."""

import contextlib
import io
import shutil
import tempfile
import time
from pathlib import Path

from benchmarks.command import command
from walproof.cli import main

FILES = Path(__file__).parents[1] / "tests" / "fixtures" / "files"


def doctor_files(*, files: int = 1000, most_s: float = 5.0) -> int:
    """Seconds of processor that the whole command takes: others run beside it; exit 1 over --most-s."""
    kinds = [
        path
        for path in sorted(FILES.rglob("*"))
        if path.is_file() and path.suffix in (".yml", ".yaml", ".cfg", ".conf")
    ]
    with tempfile.TemporaryDirectory(prefix="walproof-") as folder:
        for number in range(files):
            of = kinds[number % len(kinds)]
            to = Path(folder) / f"{number:04}" / of.name
            to.parent.mkdir()
            shutil.copy(of, to)
        began, out = time.process_time(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
            main.main(["doctor", "--format", "github", folder])
        seconds = time.process_time() - began
    print(f"{files:,} files in {seconds:.2f} s of processor, {len(out.getvalue().splitlines()):,} findings")
    return int(seconds > most_s)


if __name__ == "__main__":
    command(doctor_files)
