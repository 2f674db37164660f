"""Quantities as people write them, read into plain numbers of one unit; and counts as people read them."""

import re
from collections.abc import Mapping
from decimal import Decimal

from walproof.errors import UsageError

_DURATION = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_RATE = {"kbit/s": 1e3, "mbit/s": 1e6, "gbit/s": 1e9}
_POWERS = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {f"{unit}i": Decimal(1024**power) for power, unit in enumerate("KMGTPE", 1)}
_SIZE = {"kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def _read(text: str, what: str, units: Mapping[str, float], example: str, bare: float | None) -> float:
    match = re.fullmatch(r"\s*+([0-9]+(?:\.[0-9]+)?)\s*+([a-zA-Z/]*+)\s*+", text)
    factor = None if match is None else units.get(match[2].lower(), bare if match[2] == "" else None)
    if match is None or factor is None:
        raise UsageError(f"{text!r} is not a {what}", f"write it like {example}")
    return float(match[1]) * factor


def duration_s(text: str) -> float:
    """Seconds of a duration; a bare number is seconds, a negative one is refused.

    >>> duration_s("10ms"), duration_s("2min"), duration_s("3")
    (0.01, 120.0, 3.0)
    """
    return _read(text, "duration", _DURATION, "10ms, 3s or 2min", 1.0)


def rate_bps(text: str) -> float:
    """Bits per second of a rate such as 100mbit/s."""
    return _read(text, "rate", _RATE, "100mbit/s", None)


def size_bytes(text: str) -> int:
    """Bytes of a size such as 512MB (powers of 1024, as PostgreSQL counts)."""
    return int(_read(text, "size", _SIZE, "512MB", None))


def quantity(text: object) -> Decimal:
    """Kubernetes' quantity as a number, exactly; ArithmeticError for what is none.

    >>> quantity("700m") == quantity("0.7"), quantity("2048Mi") == quantity("2Gi"), quantity("1e3")
    (True, True, Decimal('1E+3'))
    """
    words = str(text)
    if words[-2:] in _BINARY:
        return Decimal(words[:-2]) * _BINARY[words[-2:]]
    if words[-1:] in _POWERS:
        return Decimal(words[:-1]).scaleb(_POWERS[words[-1]])
    return Decimal(words)


def share(text: str) -> float:
    """A share between 0 and 1, of a percentage or a plain number.

    >>> share("0.1%"), share("0.05")
    (0.001, 0.05)
    """
    stripped = text.strip()
    value = _read(stripped.removesuffix("%"), "share", {}, "0.1% or 0.001", 0.01 if stripped.endswith("%") else 1.0)
    if value > 1:
        raise UsageError(f"{text!r} is more than the whole", "write a share between 0% and 100%")
    return value


def and_undecided(count: int) -> str:
    """What follows a result that other drills leave open.

    >>> and_undecided(2), and_undecided(0)
    (', 2 undecided', '')
    """
    return f", {count} undecided" if count else ""


def parse_positive_int(text: object, what: str) -> int:
    """An integer from 1 up of at most nine digits; UsageError names `what` it should have been.

    >>> parse_positive_int("16", "number of clients")
    16
    """
    if not re.fullmatch(r"\+?[0-9]{1,9}", str(text).strip()) or int(str(text)) < 1:
        raise UsageError(f"{text!r} is not a {what}: it must be a whole number from 1 up", "for example 16")
    return int(str(text))


def listed(text: object, option: str) -> list[str]:
    """The parts of a comma-separated list; UsageError where it, or one of them, is empty.

    >>> listed("on, off,on", "levels")
    ['on', 'off', 'on']
    """
    parts = [part.strip() for part in str(text).split(",")]
    if not all(parts):
        raise UsageError(f"the list of --{option} {text!r} is empty or has an empty entry", f"--{option} WORD,WORD")
    return parts


def counted(count: int, noun: str) -> str:
    """A count and its noun, in the plural unless it is one.

    >>> counted(1, "client"), counted(1600, "client")
    ('1 client', '1,600 clients')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def lsn_text(position: int) -> str:
    """A WAL position in bytes as PostgreSQL writes it.

    >>> lsn_text(0x1_03000148)
    '1/3000148'
    """
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"
