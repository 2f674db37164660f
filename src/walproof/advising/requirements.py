"""Options of the command line → requirements, of the cluster and per class of transactions."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from walproof.errors import UsageError
from walproof.model.advice import Requirements
from walproof.model.units import duration_s

EXAMPLE = "--class payments:rpo=0 --class logs:rpo=1s"


def _rto(text: str) -> float:
    seconds = duration_s(text)
    if seconds <= 0:
        raise UsageError("no failover takes no time at all", "--rto 30s")
    return seconds


def _tps(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise UsageError(f"{text!r} is not a number of transactions per second", "--min-tps 2000")
    return number


def _availability(text: str) -> float:
    share = _number(text.removesuffix("%").strip()) / 100
    if not 0 < share < 1:
        raise UsageError(
            f"an availability of {text} is not valid: it is a percentage below 100, as every cluster stops some time",
            "--availability 99.99",
        )
    return share


def _loss_per_year(text: str) -> float:
    chance = _number(text)
    if not 0 < chance < 1:
        raise UsageError(
            f"a loss per year of {text} is not valid: it is a probability above 0, as no cluster excludes a loss, and "
            "below 1",
            "--loss-per-year 1e-6",
        )
    return chance


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


_PARSERS: dict[str, Callable[[Requirements, str], Requirements]] = {
    "rpo": lambda required, text: replace(required, rpo_s=duration_s(text)),
    "rto": lambda required, text: replace(required, rto_s=_rto(text)),
    "max-commit-latency": lambda required, text: replace(required, max_commit_latency_ms=1000 * duration_s(text)),
    "min-tps": lambda required, text: replace(required, min_tps=_tps(text)),
    "read-your-writes": lambda required, text: replace(
        required, read_your_writes=text.lower() in ("", "true", "yes", "on")
    ),
    "availability": lambda required, text: replace(required, availability=_availability(text)),
    "loss-per-year": lambda required, text: replace(required, loss_per_year=_loss_per_year(text)),
}


def requirements_of(options: Iterable[tuple[str, str]]) -> Requirements:
    """The requirements in (name, text) pairs; UsageError lists the names there are.

    >>> requirements_of([("rpo", "0"), ("max-commit-latency", "10ms")]).text
    '--rpo 0s --max-commit-latency 10ms'
    """
    required = Requirements()
    for name, text in options:
        if name not in _PARSERS:
            raise UsageError(f"{name!r} is not a requirement", f"the requirements are {', '.join(_PARSERS)}")
        required = _PARSERS[name](required, text)
    return required


def class_of(text: str) -> tuple[str, Requirements]:
    """The name of a class of transactions and its requirements; UsageError when it is not written as such.

    >>> class_of("logs:rpo=1s")[1].rpo_s
    1.0
    """
    name, colon, rest = text.partition(":")
    if not name.strip() or not colon or not rest.strip():
        raise UsageError(f"{text!r} is not a class and its requirements", f"write it like {EXAMPLE}")
    pairs = [(key.strip(), value.strip()) for key, _, value in (part.partition("=") for part in rest.split(","))]
    required = requirements_of(pairs)
    if required.rto_s is not None:
        raise UsageError("an RTO is the cluster's, not one class's", "give --rto next to the classes")
    if required.of_a_year:
        raise UsageError("a year is forecast for the cluster, not for one class", "give it next to the classes")
    return name.strip(), required


def classes_of(texts: Iterable[str]) -> tuple[tuple[str, Requirements], ...]:
    """Every class; UsageError for a name that is given twice."""
    classes = tuple(class_of(text) for text in texts)
    names = [name for name, _ in classes]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"the class {name} is given twice", EXAMPLE)
    return classes
