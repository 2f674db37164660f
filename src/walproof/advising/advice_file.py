"""Advice as JSON and back: what `walproof advise --json` prints and `walproof apply` reads."""

from typing import Any

from pydantic import TypeAdapter, ValidationError

from walproof.errors import UsageError
from walproof.model.advice import Advice, Choice

_ADVICE = TypeAdapter(Advice)


def as_json(advice: Advice) -> dict[str, Any]:
    """One object; read back by `read_advice`."""
    tree: dict[str, Any] = _ADVICE.dump_python(advice, mode="json")
    return tree


def read_advice(text: str) -> Advice:
    """The advice in that JSON; UsageError when it is none."""
    try:
        return _ADVICE.validate_json(text)
    except ValidationError as wrong:
        first = wrong.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise UsageError(
            f"this is not advice: {place}: {first['msg']}", "walproof advise RECORD --json > advice.json"
        ) from None


def chosen(advice: Advice, number: int) -> Choice:
    """The choice of that number; UsageError says which there are."""
    for choice in advice.choices:
        if choice.number == number:
            return choice
    if not advice.choices:
        why = "; ".join(f"{r.wish}: {r.limit}" for r in advice.refused)
        raise UsageError(f"the advice holds no choice to apply ({why})", "relax the wish, see `walproof advise`")
    raise UsageError(f"there is no choice {number}", f"--choice 1 to {len(advice.choices)}")
