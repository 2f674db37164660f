"""Advice as JSON and back: what `walproof advise --json` prints and `walproof apply` reads."""

import json
from typing import Any

from pydantic import TypeAdapter, ValidationError

from walproof.errors import UsageError
from walproof.machine.foreign_text import from_json, printable
from walproof.model.advice import Advice, Choice

_ADVICE = TypeAdapter(Advice)


def as_json(advice: Advice) -> dict[str, Any]:
    """One object; read back by `read_advice`."""
    tree: dict[str, Any] = _ADVICE.dump_python(advice, mode="json")
    return tree


def read_advice(text: str) -> Advice:
    """The advice in that JSON; UsageError when it is none."""
    try:
        return _ADVICE.validate_json(json.dumps(printable(from_json(text))))
    except (ValidationError, ValueError) as wrong:
        where, why = "the file", str(wrong)
        if isinstance(wrong, ValidationError):
            first = wrong.errors()[0]
            where, why = ".".join(map(str, first["loc"])) or where, first["msg"]
        raise UsageError(f"this is not advice: {where}: {why}", "walproof advise RECORD --json > advice.json") from None


def chosen(advice: Advice, number: int) -> Choice:
    """The choice of that number; UsageError lists which there are."""
    for choice in advice.choices:
        if choice.number == number:
            return choice
    if not advice.choices:
        why = "; ".join(f"{r.requirement}: {r.limit}" for r in advice.refused)
        raise UsageError(f"the advice holds no choice to apply ({why})", "relax the requirement, see `walproof advise`")
    raise UsageError(f"there is no choice {number}", f"--choice 1 to {len(advice.choices)}")
