"""Which of several choices no other beats: the Pareto front. Pure."""

from collections.abc import Sequence


def front(choices: Sequence[tuple[float, ...]]) -> tuple[bool, ...]:
    """Of each choice (numbers of which less is better), whether no other is as good in all and better in one.

    >>> front([(1.0, 9.0), (2.0, 2.0), (3.0, 3.0), (2.0, 2.0)])
    (True, True, False, True)
    """
    return tuple(not any(_beats(other, one) for other in choices) for one in choices)


def _beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))
