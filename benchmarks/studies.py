"""The five published studies, one after another, as the page docs/studies.md: claims judged, figures compared.

`python -m benchmarks.studies > docs/studies.md`: hours, each study on a lab of its own; `--quick` 25 minutes. `--from
RECORD…` takes records of `walproof study run NAME` instead and measures nothing: their samples and drills are judged
anew by the studies as they are declared now, those of several runs of one study together.
"""

import json
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from benchmarks.command import command
from walproof.model.event import ClaimJudged, Event, SampleDone
from walproof.pricing.sampling import WARM_BLOCK
from walproof.records.reader import read
from walproof.reporting.conclusion import claims_tally
from walproof.reporting.wording import interval, number
from walproof.studies.claims import Measured, claim_judged, figure_compared
from walproof.studies.declaration import shipped, studies

HEAD = """# The published studies, here

What five published studies claim, compared with the same questions asked here, smaller: each member is limited to a
part of a processor, as each of the papers' servers had its own, so that members, clients and link emulator together
leave some of the machine unused. A claim that is *not reproduced* is not refuted: it did not hold at this scale.
Printed by `python -m benchmarks.studies`; each part is one `walproof study run NAME`.
"""


def run(name: str, quick: bool) -> Path:
    """The record of a run of one study, made now."""
    words = ["walproof", "study", "run", name, *(["--quick"] if quick else []), "--json"]
    finished = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    return Path(json.loads(finished.stdout)["record"])


def processors_in_use(events: Sequence[Event]) -> str:
    """How long was measured, and how much of the machine the samples of each scenario used, in words."""
    seen: dict[str, list[float]] = defaultdict(list)
    seconds = 0.0
    for event in events:
        if isinstance(event, SampleDone) and event.result.sample.block > WARM_BLOCK:
            seen[event.result.sample.scenario.text].append(event.result.window.machine_busy)
            seconds += event.result.seconds
    shares = (f"{fmean(busy):.0%} with {label}" for label, busy in seen.items())
    return (
        f"Samples of {seconds / 60:.0f} min; of the machine's processors {', '.join(shares)} were in use during them."
    )


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
        f"\n{processors_in_use(events)}",
        "\n| claim | the paper | here | verdict |\n|---|---|---|---|",
    ]
    for c in claims:
        label, _, says = c.claim.partition(": ")
        lines.append(f"| **{label}**: {says} | {c.paper} | {c.measured}: {c.why} | {c.verdict} |")
    lines.append("\n| the paper's figure | unit | paper | here (95 % CI) |\n|---|---|--:|--:|")
    lines += [f"| {f.figure} | {f.unit} | {number(f.paper)} | {interval(f.measured)} |" for f in figures]
    return "\n".join(lines)


def together(records: Iterable[Path]) -> dict[str, list[Event]]:
    """The events by study; blocks of several runs of one study are told apart."""
    studied: dict[str, list[Event]] = defaultdict(list)
    for nth, record in enumerate(records):
        events = read(record).events
        studied[next(e.study for e in events if isinstance(e, ClaimJudged))] += (_renumbered(e, nth) for e in events)
    return studied


def _renumbered(event: Event, nth: int) -> Event:
    if not isinstance(event, SampleDone) or event.result.sample.block <= WARM_BLOCK:
        return event
    sample = replace(event.result.sample, block=event.result.sample.block + nth * 1_000_000)
    return replace(event, result=replace(event.result, sample=sample))


def main(*, quick: bool = False, from_: tuple[Path, ...] = ()) -> int:
    """Every study, in the order of their names."""
    print(HEAD, end="")
    for name, events in sorted(together(from_ or (run(name, quick) for name in studies())).items()):
        print(page(name, events))
    return 0


if __name__ == "__main__":
    command(main)
