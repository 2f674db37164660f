"""What a server answers is data: each column becomes a number, a word or a truth here, or the answer is none. Pure.

The superuser of the old server could replace any function of its catalog, and give it another type."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

Kind = Callable[[object], Any]


def number(value: object) -> int:
    """A whole number of 64 bits; ValueError for anything else.

    >>> number("12"), number(-3)
    (12, -3)
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"the server answered {value!r:.60} where it has a number")
    if not -(1 << 63) <= (whole := int(value)) < 1 << 64:
        raise ValueError(f"the server answered a number of {whole.bit_length()} bits")
    return whole


def word(value: object) -> str:
    """Text as it is; ValueError for anything else."""
    if not isinstance(value, str):
        raise ValueError(f"the server answered {value!r:.60} where it has text")
    return value


def shown(value: object) -> str:
    r"""Text for people, of bytes that may be none: these by escapes; ValueError for anything else.

    >>> print(shown(b"caf\xe9"), shown("name"))
    caf\xe9 name
    """
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else word(value)


def truth(value: object) -> bool:
    """True or False; ValueError for anything else."""
    if not isinstance(value, bool):
        raise ValueError(f"the server answered {value!r:.60} where it has true or false")
    return value


def many(kind: Kind) -> Kind:
    """A list of that kind, as a tuple; ValueError for anything else."""

    def read(value: object) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise ValueError(f"the server answered {value!r:.60} where it has a list")
        return tuple(map(kind, value))

    return read


def numbers(value: object) -> tuple[int, ...]:
    """Whole numbers in one text, apart by spaces; ValueError for anything else."""
    return tuple(map(number, word(value).split()))


def maybe(kind: Kind) -> Kind:
    """That kind, or None."""
    return lambda value: None if value is None else kind(value)


def answered(rows: Iterable[Sequence[object]], *kinds: Kind) -> list[tuple[Any, ...]]:
    """Rows whose columns are of these kinds; ValueError for others."""
    return [tuple(kind(value) for kind, value in zip(kinds, row, strict=True)) for row in rows]
