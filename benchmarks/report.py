"""How large, how fast: a report of 2,000 samples and 200 drills rendered and opened in Chromium. Asserts the limits.

Limits (issue "See it"): under 8 MB, rendered in under 10 s, opened in under 2 s. Times are this process's processor
time and Chromium's own navigation timing, so that other work on the machine counts as little as possible.
Run: python -m benchmarks.report
"""

import json
import tempfile
from pathlib import Path
from time import perf_counter, process_time

from benchmarks.command import command
from tests.fixtures.browsers import chromium
from tests.fixtures.records import SETTINGS, full_record
from walproof.model.event import SampleDone
from walproof.records.reader import read
from walproof.records.writer import Writer
from walproof.reporting.html_and_markdown import page
from walproof.reporting.record_outline import composed

LIMITS = {"bytes": 8_000_000, "render_s": 10.0, "open_s": 2.0}


def main() -> int:
    """Measure, print one JSON object, exit 1 when a limit is exceeded."""
    events = full_record(SETTINGS, (1, 4, 16, 64), 25, 200)
    with tempfile.TemporaryDirectory() as folder:
        with Writer(Path(folder) / "record", "study") as emit:
            for event in events:
                emit(event)
        spent, wall = process_time(), perf_counter()
        text = page(composed(read(Path(folder) / "record")))
        rendered, waited = process_time() - spent, perf_counter() - wall
        path = Path(folder) / "report.html"
        path.write_text(text, "utf-8")
        opened = min(_open(path) for _ in range(3))
    found = {
        "samples": sum(isinstance(e, SampleDone) for e in events),
        "drills": 200,
        "bytes": len(text.encode()),
        "render_s": round(rendered, 2),
        "render_wall_s": round(waited, 2),
        "open_s": round(opened, 2),
    }
    exceeded = [name for name, limit in LIMITS.items() if found[name] > limit]
    print(json.dumps({**found, "limits": LIMITS, "exceeded": exceeded}))
    return 1 if exceeded else 0


def _open(path: Path) -> float:
    """Seconds from navigation to the load event, and a first layout."""
    with chromium() as watched:
        watched.page.goto(path.as_uri())
        return float(
            watched.page.evaluate(
                "(() => { const n = performance.getEntriesByType('navigation')[0]; document.body.offsetHeight;"
                " return n.loadEventEnd / 1000; })()"
            )
        )


if __name__ == "__main__":
    command(main)
