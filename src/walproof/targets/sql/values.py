"""Whether a parameter as somebody wrote it and as pg_settings shows it are one value: units, booleans. Pure."""

import re

_TIME_US = {"us": 1, "ms": 1_000, "s": 1_000_000, "min": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_BYTES = {"b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "tb": 1 << 40}
_ON = {"on", "true", "yes", "1"}
_OFF = {"off", "false", "no", "0"}


def _measure(text: str, unit: str) -> tuple[str, float] | None:
    """(dimension, amount in its smallest unit) of a number with a unit; a bare number counts in `unit`."""
    match = re.fullmatch(r"\s*([+-]?\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if match is None:
        return None
    number, word = float(match[1]), match[2].lower()
    if not word:
        block = re.fullmatch(r"(\d*)\s*([A-Za-z]*)", unit)
        times, word = (float(block[1] or 1), block[2].lower()) if block else (1.0, "")
        number *= times
    if word in _TIME_US:
        return "time", number * _TIME_US[word]
    if word in _BYTES:
        return "bytes", number * _BYTES[word]
    return ("number", number) if not word else None


def same_value(written: str, setting: str, unit: str) -> bool:
    """Whether `written` (postgresql.conf) and `setting` in `unit` (pg_settings) are one value.

    >>> same_value("15s", "15000", "ms"), same_value("1GB", "131072", "8kB"), same_value("true", "on", "")
    (True, True, True)
    >>> same_value("15s", "5000", "ms"), same_value("on", "off", "")
    (False, False)
    """
    if written == setting:
        return True
    if setting in ("on", "off"):
        return written.lower() in (_ON if setting == "on" else _OFF)
    one, other = _measure(written, unit), _measure(setting, unit)
    return one is not None and one == other
