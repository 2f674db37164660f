"""`walproof report RECORD --rejudge`: every verdict derived again from the kept history alone, and compared."""

from dataclasses import dataclass
from typing import Any

from walproof.cli.console import print_result
from walproof.errors import UsageError
from walproof.machine.untrusted import bounded, regular
from walproof.model.event import DrillDone
from walproof.model.units import counted
from walproof.model.verdict import Drill
from walproof.proving.conclude import concluded_drill
from walproof.proving.history_file import decode, history_name
from walproof.records.codec import decode as decode_event
from walproof.records.codec import encode
from walproof.records.layout import FILES
from walproof.records.reader import Record

_MOST_HISTORY = 1 << 30


@dataclass(frozen=True, slots=True)
class Rejudged:
    """One drill of the record and what its history says now; None where no history was kept."""

    recorded: Drill
    now: Drill | None
    same: bool


def rejudged(record: Record) -> list[Rejudged]:
    """Every drill of the record, judged again; UsageError when a history is damaged."""
    return [_one(record, event) for event in record.of(DrillDone)]


def _one(record: Record, event: DrillDone) -> Rejudged:
    path = record.directory / FILES / history_name(event.drill.number)
    try:
        with regular(record.directory, path) as file:
            now = concluded_drill(decode(bounded(file, _MOST_HISTORY)))
    except OSError:  # not there, a link, or no file
        return Rejudged(event.drill, None, same=False)
    except UsageError as wrong:
        raise UsageError(f"{path}: {wrong.message}", wrong.hint) from None
    # As it is read from a record: without control characters, whoever wrote the history.
    again, _ = decode_event(encode(DrillDone(event.at, now)))
    assert isinstance(again, DrillDone)
    return Rejudged(event.drill, again.drill, encode(event) == encode(again))


def rejudge(record: Record, *, as_json: bool) -> int:
    """Print what comes out; 0 when every verdict is the same, byte for byte, 1 when one is not."""
    found = rejudged(record)
    judged = [one for one in found if one.now is not None]
    if not judged:
        raise UsageError(
            f"{record.directory} keeps no histories, so nothing can be judged again",
            "run walproof prove again: the record of its drills keeps them",
        )
    print_result(_tree(record, found), *_lines(found, judged), as_json=as_json)
    return 0 if all(one.same for one in judged) else 1


def _lines(found: list[Rejudged], judged: list[Rejudged]) -> list[str]:
    same = sum(one.same for one in judged)
    verdicts = counted(len(judged), "verdict")
    lines = [f"{same} of {verdicts} derived again from the kept histories: the same to the byte."]
    if len(judged) < len(found):
        lines.append(f"{counted(len(found) - len(judged), 'drill')} ran no load and kept no history.")
    for one in judged:
        if not one.same and one.now is not None:
            lines.append(f"drill {one.recorded.number} was {one.recorded.verdict}: {one.recorded.why}")
            lines.append(f"  now it is {one.now.verdict}: {one.now.why}")
            lines += [f"  {name}: {before} → {after}" for name, before, after in differences(one.recorded, one.now)]
    return lines


def differences(before: Drill, now: Drill) -> list[tuple[str, Any, Any]]:
    """The fields in which two drills differ, but for verdict and sentence."""
    names = [name for name in Drill.__dataclass_fields__ if name not in ("verdict", "why")]
    pairs = ((name, getattr(before, name), getattr(now, name)) for name in names)
    return [(name, old, new) for name, old, new in pairs if repr(old) != repr(new)]


def _tree(record: Record, found: list[Rejudged]) -> dict[str, Any]:
    return {
        "record": str(record.directory),
        "drills": [
            {
                "number": one.recorded.number,
                "recorded": str(one.recorded.verdict),
                "rejudged": None if one.now is None else str(one.now.verdict),
                "same": one.same,
            }
            for one in found
        ],
    }
