"""Words of the command line → requirements, of everybody and per class of transactions."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from walproof.errors import UsageError
from walproof.model.advice import Requirements
from walproof.model.units import duration_s

EXAMPLE = "--class payments:rpo=0 --class logs:rpo=1s"


def _rpo(wish: Requirements, text: str) -> Requirements:
    return replace(wish, rpo_s=duration_s(text))


def _rto(wish: Requirements, text: str) -> Requirements:
    seconds = duration_s(text)
    if seconds <= 0:
        raise UsageError("no failover takes no time at all", "--rto 30s")
    return replace(wish, rto_s=seconds)


def _latency(wish: Requirements, text: str) -> Requirements:
    return replace(wish, max_commit_latency_ms=1000 * duration_s(text))


def _tps(wish: Requirements, text: str) -> Requirements:
    try:
        number = float(text)
    except ValueError:
        raise UsageError(f"{text!r} is not a number of transactions per second", "--min-tps 2000") from None
    if not 0 <= number < float("inf"):
        raise UsageError(f"{text!r} is not a number of transactions per second", "--min-tps 2000")
    return replace(wish, min_tps=number)


def _reads(wish: Requirements, text: str) -> Requirements:
    return replace(wish, read_your_writes=text.lower() in ("", "true", "yes", "on"))


_READ: dict[str, Callable[[Requirements, str], Requirements]] = {
    "rpo": _rpo,
    "rto": _rto,
    "max-commit-latency": _latency,
    "min-tps": _tps,
    "read-your-writes": _reads,
}


def wish_of(words: Iterable[tuple[str, str]]) -> Requirements:
    """The wish of (name, text) pairs; UsageError names the requirements there are.

    >>> wish_of([("rpo", "0"), ("max-commit-latency", "10ms")]).text
    '--rpo 0s --max-commit-latency 10ms'
    """
    wish = Requirements()
    for name, text in words:
        if name not in _READ:
            raise UsageError(f"{name!r} is not a wish", f"the requirements are {', '.join(_READ)}")
        wish = _READ[name](wish, text)
    return wish


def class_of(text: str) -> tuple[str, Requirements]:
    """A class of transactions and its wish.

    >>> class_of("logs:rpo=1s")[1].rpo_s
    1.0
    """
    name, colon, rest = text.partition(":")
    if not name.strip() or not colon or not rest.strip():
        raise UsageError(f"{text!r} is not a class and its requirements", f"write it like {EXAMPLE}")
    pairs = [(key.strip(), value.strip()) for key, _, value in (part.partition("=") for part in rest.split(","))]
    wish = wish_of(pairs)
    if wish.rto_s is not None:
        raise UsageError("an RTO is the cluster's, not one class's", "give --rto beside the classes")
    return name.strip(), wish


def classes_of(texts: Iterable[str]) -> tuple[tuple[str, Requirements], ...]:
    """Every class; a name given twice is refused."""
    classes = tuple(class_of(text) for text in texts)
    names = [name for name, _ in classes]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"the class {name} is given twice", EXAMPLE)
    return classes
