"""Words of the command line → wishes, of everybody and per class of transactions."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from walproof.errors import UsageTrouble
from walproof.model.advice import Wish
from walproof.model.units import duration_s

EXAMPLE = "--class payments:rpo=0 --class logs:rpo=1s"


def _rpo(wish: Wish, text: str) -> Wish:
    return replace(wish, rpo_s=duration_s(text))


def _rto(wish: Wish, text: str) -> Wish:
    seconds = duration_s(text)
    if seconds <= 0:
        raise UsageTrouble("no failover takes no time at all", "--rto 30s")
    return replace(wish, rto_s=seconds)


def _latency(wish: Wish, text: str) -> Wish:
    return replace(wish, max_commit_latency_ms=1000 * duration_s(text))


def _tps(wish: Wish, text: str) -> Wish:
    try:
        number = float(text)
    except ValueError:
        raise UsageTrouble(f"{text!r} is not a number of transactions per second", "--min-tps 2000") from None
    if not 0 <= number < float("inf"):
        raise UsageTrouble(f"{text!r} is not a number of transactions per second", "--min-tps 2000")
    return replace(wish, min_tps=number)


def _reads(wish: Wish, text: str) -> Wish:
    return replace(wish, read_your_writes=text.lower() in ("", "true", "yes", "on"))


_READ: dict[str, Callable[[Wish, str], Wish]] = {
    "rpo": _rpo,
    "rto": _rto,
    "max-commit-latency": _latency,
    "min-tps": _tps,
    "read-your-writes": _reads,
}


def wish_of(words: Iterable[tuple[str, str]]) -> Wish:
    """The wish of (name, text) pairs; UsageTrouble names the wishes there are.

    >>> wish_of([("rpo", "0"), ("max-commit-latency", "10ms")]).text
    '--rpo 0s --max-commit-latency 10ms'
    """
    wish = Wish()
    for name, text in words:
        if name not in _READ:
            raise UsageTrouble(f"{name!r} is not a wish", f"the wishes are {', '.join(_READ)}")
        wish = _READ[name](wish, text)
    return wish


def class_of(text: str) -> tuple[str, Wish]:
    """A class of transactions and its wish.

    >>> class_of("logs:rpo=1s")[1].rpo_s
    1.0
    """
    name, colon, rest = text.partition(":")
    if not name.strip() or not colon or not rest.strip():
        raise UsageTrouble(f"{text!r} is not a class and its wishes", f"write it like {EXAMPLE}")
    pairs = [(key.strip(), value.strip()) for key, _, value in (part.partition("=") for part in rest.split(","))]
    wish = wish_of(pairs)
    if wish.rto_s is not None:
        raise UsageTrouble("an RTO is the cluster's, not one class's", "give --rto beside the classes")
    return name.strip(), wish


def classes_of(texts: Iterable[str]) -> tuple[tuple[str, Wish], ...]:
    """Every class; a name given twice is refused."""
    classes = tuple(class_of(text) for text in texts)
    names = [name for name, _ in classes]
    for name in names:
        if names.count(name) > 1:
            raise UsageTrouble(f"the class {name} is given twice", EXAMPLE)
    return classes
