"""Event ⇄ one JSON line. Unknown kinds, fields and values are skipped with a notice; never guesses.

NaN and infinities, which JSON lacks, are written as the strings "NaN", "Infinity" and "-Infinity" and come back.
"""

import dataclasses
import re
from contextlib import suppress
from typing import Annotated, Any, get_args

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from walproof.machine.untrusted import from_json, printable
from walproof.model.event import Event

_ESCAPED = re.compile(r"\\[bfru]|[\x7f-\x9f]")
"""Where a line may hold control characters."""
KINDS: dict[str, type] = {str(f.default): e for e in get_args(Event) for f in dataclasses.fields(e) if f.name == "kind"}
_ADAPTER: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="kind")])
_WRITER: TypeAdapter[Any] = TypeAdapter(Any, config=ConfigDict(ser_json_inf_nan="strings"))


def encode(event: Event) -> str:
    """The event as one line of JSON, without its newline."""
    return _WRITER.dump_json(event).decode()


def decode(line: str) -> tuple[Event | None, str]:
    """The event of a line and a notice: (event, ""), (event, what was skipped) or (None, why it was skipped)."""
    try:
        raw = from_json(line)
        if _ESCAPED.search(line):
            raw = printable(raw)
    except ValueError:
        return None, "not JSON"
    if not isinstance(raw, dict) or not isinstance(raw.get("kind"), str):
        return None, "not an event"
    if raw["kind"] not in KINDS:
        return None, f"unknown kind {raw['kind'][:40]!r}"
    _add_credit(raw)
    try:
        event = _ADAPTER.validate_python(raw)
    except ValidationError as wrong:
        where = ".".join(str(part) for part in wrong.errors()[0]["loc"])
        return None, f"unknown value of {where[:80]}"
    unknown = sorted(_unknown_fields(raw, event))
    return event, f"unknown field {', '.join(unknown)[:80]}" if unknown else ""


def _add_credit(raw: dict[str, Any]) -> None:
    """Older records keep a sample's rate in place of its credit."""
    result = raw.get("result")
    if isinstance(result, dict) and {"tps", "seconds"} <= result.keys():
        with suppress(TypeError, ValueError, OverflowError):
            result["credit"] = float(result.pop("tps")) * float(result["seconds"])


def _unknown_fields(raw: object, value: object) -> set[str]:
    """Names of fields that were written and that this version does not have."""
    if isinstance(raw, dict) and dataclasses.is_dataclass(value):
        names = {f.name for f in dataclasses.fields(value)}
        below = (_unknown_fields(raw[n], getattr(value, n)) for n in names & raw.keys())
        return {str(n)[:40] for n in raw.keys() - names}.union(*below)
    if isinstance(raw, dict) and isinstance(value, dict):
        return set().union(*(_unknown_fields(raw[k], v) for k, v in value.items() if isinstance(v, tuple) or k in raw))
    if isinstance(raw, list) and isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
        return set().union(*(_unknown_fields(r, v) for r, v in zip(raw, value, strict=False)))
    return set()
