"""The five published studies, one after another, as the page docs/studies.md: claims judged, figures compared.

`python -m benchmarks.studies > docs/studies.md`: 25 minutes, each study on a lab of its own. `--from RECORD…` takes
records of `walproof study run NAME --quick` instead and measures nothing: their samples and drills are judged anew by
the studies as they are declared now.
"""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks.command import command
from walproof.model.event import ClaimJudged, Event
from walproof.records.reader import read
from walproof.reporting.conclusion import claims_tally
from walproof.reporting.wording import interval, number
from walproof.studies.claims import Measured, claim_judged, figure_compared
from walproof.studies.declaration import shipped, studies

HEAD = """# The published studies, here

What five published studies claim, compared with the same questions on two shared processors, where three members,
their clients and the link emulator share what the papers gave to one server each. A claim that is *not reproduced* is
not refuted: it did not hold at this scale. Printed by `python -m benchmarks.studies`; each part is one
`walproof study run NAME --quick`.
"""


def run(name: str) -> Path:
    """The record of a quick run of one study, made now."""
    finished = subprocess.run(
        ["walproof", "study", "run", name, "--quick", "--json"], stdout=subprocess.PIPE, text=True, check=True
    )
    return Path(json.loads(finished.stdout)["record"])


def page(name: str, events: Sequence[Event]) -> str:
    """One study as Markdown."""
    study, story = shipped(name)
    measured = Measured(events, study.part)
    claims = [claim_judged(name, claim, measured, 0.0) for claim in study.claim]
    figures = [figure_compared(name, figure, measured, 0.0) for figure in study.figure]
    lines = [
        f"\n## {study.title}\n",
        f"`{name}` · {study.source}. There: {study.machine}.\n",
        f"**{claims_tally(claims)}** of {len(claims)} claims.\n",
        *story.strip().splitlines(),
        "\n| claim | the paper | here | verdict |\n|---|---|---|---|",
    ]
    for c in claims:
        label, _, says = c.claim.partition(": ")
        lines.append(f"| **{label}**: {says} | {c.paper} | {c.measured}: {c.why} | {c.verdict} |")
    lines.append("\n| the paper's figure | unit | paper | here (95 % CI) |\n|---|---|--:|--:|")
    lines += [f"| {f.figure} | {f.unit} | {number(f.paper)} | {interval(f.measured)} |" for f in figures]
    return "\n".join(lines)


def main(*, from_: tuple[Path, ...] = ()) -> int:
    """Every study, in the order of their names."""
    print(HEAD, end="")
    for record in from_ or map(run, studies()):
        events = read(record).events
        print(page(next(e.study for e in events if isinstance(e, ClaimJudged)), events))
    return 0


if __name__ == "__main__":
    command(main)
