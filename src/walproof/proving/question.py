"""Words of the command line → a Question, or one sentence why it is not valid. Looks at no cluster."""

from collections.abc import Mapping
from typing import Any

from walproof.errors import UsageError
from walproof.model.guarantee import Level, level
from walproof.model.units import share
from walproof.proving.campaign import MATRIX, STORM, Question
from walproof.proving.faults import CATALOGUE, Fault, fault, victim

Words = Mapping[str, Any]
"""Option name → text as typed, flag, or None when not given."""


QUICK_S = 600.0
"""`--matrix --quick` begins no drill after so many seconds: the longest one still ends within twelve minutes."""


def question_of(words: Words) -> Question:
    """The question these words ask.

    >>> q = question_of({"fault": "kill,partition", "levels": "off,on", "repeat": "3"})
    >>> [f.name for f in q.faults], [str(l) for l in q.levels], q.repeat
    (['kill', 'partition'], ['off', 'on'], 3)
    """
    _consistent(words)
    matrix = bool(words.get("matrix"))
    names = [*MATRIX, "none"] if matrix else _listed(words.get("fault") or "kill", "fault")
    on = words.get("victim")
    return Question(
        faults=tuple(dict.fromkeys(fault(name) for name in names)),
        levels=_levels(words.get("levels"), matrix),
        victim=victim(str(on)) if on else None,
        route=_route(words.get("route")),
        writers=whole(words.get("writers"), "writers", 16),
        repeat=whole(words.get("repeat"), "repeat", 1 if not matrix or words.get("quick") else 2),
        until_bound=_bound(words.get("until_bound")),
        storm=whole(words.get("storm"), "storm", 0) if words.get("storm") is not None else 0,
        seed=whole(words.get("seed"), "seed", 1),
        matrix=matrix,
        budget_s=QUICK_S if matrix and words.get("quick") else None,
    )


def _consistent(words: Words) -> None:
    """Refuse empty words, which would quietly mean nothing was asked, and words that contradict one another."""
    empty = next((name for name, said in words.items() if isinstance(said, str) and not said.strip()), None)
    if empty:
        flag = "--" + empty.replace("_", "-")
        raise UsageError(f"{flag} has nothing in it", f"leave {flag} out, or see walproof prove --help")
    if words.get("matrix"):
        if words.get("fault") or words.get("storm"):
            raise UsageError("--matrix brings its own faults", "leave --fault and --storm out")
        if words.get("victim"):
            raise UsageError("--matrix brings its own victims", "leave --victim out")
    elif words.get("quick"):
        raise UsageError("--quick belongs to --matrix", "walproof prove --matrix --quick")
    if words.get("storm") and words.get("fault"):
        raise UsageError("--storm draws its own faults", "leave --fault out")
    for name in _listed(words["allow"], "fault") if words.get("allow") else ():
        fault(name)


def _levels(text: object, matrix: bool) -> tuple[Level, ...]:
    if text is None:
        return tuple(Level) if matrix else (Level.OFF, Level.ON)
    return tuple(dict.fromkeys(level(word) for word in _listed(text, "level")))


def _listed(text: object, what: str) -> list[str]:
    words = [word.strip() for word in str(text).split(",") if word.strip()]
    if not words:
        raise UsageError(f"no {what} is named", "for instance --fault kill,partition --levels off,on")
    return words


def _route(text: object) -> str:
    return str(text or "multi-host").strip().lower()


def _bound(text: object) -> float | None:
    if text is None:
        return None
    bound = share(str(text))
    if not 0 < bound < 1:
        raise UsageError("a bound of 0 would need endless drills", "--until-bound 5%")
    return bound


def whole(text: object, what: str, otherwise: int) -> int:
    """A whole number of at least 1; `otherwise` when not said."""
    if text is None:
        return otherwise
    try:
        number = int(str(text))
    except ValueError:
        raise UsageError(f"{text!r} is not a whole number of {what}", f"--{what} 10") from None
    if number < 1:
        raise UsageError(f"{what} must be at least 1, not {number}", f"--{what} 10")
    return number


def consented(question: Question, allow: object) -> None:
    """Refuse faults on a cluster of the user's that `--allow` does not name."""
    allowed = set(_listed(allow, "fault")) if allow else set()
    unknown = allowed - set(CATALOGUE)
    if unknown:
        fault(sorted(unknown)[0])
    missing = [f.name for f in _asked(question) if f.steps and f.name not in allowed]
    if missing:
        raise UsageError(
            f"this is not a lab: {', '.join(missing)} would break a cluster of yours, and you did not allow it",
            f"--allow {','.join(missing)} if you mean it",
        )


def _asked(question: Question) -> tuple[Fault, ...]:
    return tuple(CATALOGUE[name] for name in STORM) if question.storm else question.faults
