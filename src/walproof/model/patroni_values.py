"""What Patroni makes of its dynamic configuration and of its members' tags: its own rules, value by value. Pure.

After patroni/utils.py (parse_bool, strtol, strtod, parse_int), global_config.py, config.py and tags.py of 4.1; the test
tests/unit/test_patroni_values.py compares every function with theirs. A document of these may be a stranger's.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

LEAST = {"ttl": 20, "loop_wait": 1, "retry_timeout": 3}
DEFAULTS = {"ttl": 30, "loop_wait": 10, "retry_timeout": 10}
"""Patroni's timeouts, s: the smallest it takes (config.py, _validate_and_adjust_timeouts), and where none is set."""
ADJUSTS = (3, 2)
"""Since that version Patroni makes its timeouts fit one another."""
NUMBERS = {
    "maximum_lag_on_failover": 1 << 20,
    "maximum_lag_on_syncnode": -1,
    "synchronous_node_count": 1,
    "primary_start_timeout": 300,
    "master_start_timeout": 300,
    "primary_stop_timeout": 0,
    "master_stop_timeout": 0,
}
"""What Patroni uses where a number is not set, or is none to it: bytes, members, seconds (global_config.py)."""
SWITCHES = ("pause", "synchronous_mode", "synchronous_mode_strict", "failsafe_mode", "check_timeline")
"""Off where they are not set, or are neither on nor off to it."""

_WHOLE = re.compile(r"[-+]?(?:(?P<hex>0x[0-9a-fA-F]{1,99})|(?P<octal>0[0-7]{0,99})|[1-9][0-9]*)")
"""Bounded: Python prints no number of thousands of digits, and Patroni's document may be a stranger's."""
_REAL = re.compile(r"[-+]?[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?")


def parse_bool(value: object) -> bool | None:
    """True, False, or None for what is neither to Patroni.

    >>> parse_bool("Yes"), parse_bool(0), parse_bool("quorum"), parse_bool(2)
    (True, False, None, None)
    """
    text = str(value).lower()
    if text in ("on", "true", "yes", "1"):
        return True
    return False if text in ("off", "false", "no", "0") else None


def parse_int(value: object) -> int | None:
    """A number of no unit, as Patroni rounds it; None for what is none to it: no key that is read here takes a unit.

    >>> parse_int("0x10"), parse_int("1.5"), parse_int("010"), parse_int("1MB"), parse_int(True)
    (16, 2, 8, None, None)
    """
    try:
        text = str(value).strip()
        found = _WHOLE.match(text)
        rest = text[found.end() :] if found else text
        if rest[:1] in (".", "e", "E"):
            real = _REAL.match(text)
            return round(float(real[0])) if real and not text[real.end() :].strip() else None
        base = 16 if found and found["hex"] else 8 if found and found["octal"] else 10
        return None if found is None or rest.strip() else int(found[0], base)
    except (ValueError, OverflowError):  # of so many digits: Patroni fails there
        return None


def plain_int(value: Any) -> int | None:
    """A number as Python's int() takes it, which reads Patroni's timeouts, its quorum and its positions; else None."""
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return None


def number(config: Mapping[str, Any], name: str) -> int:
    """A key of NUMBERS.

    >>> number({"maximum_lag_on_failover": "10MB"}, "maximum_lag_on_failover")
    1048576
    """
    read = parse_int(config.get(name))
    return NUMBERS[name] if read is None else read


def is_on(config: Mapping[str, Any], name: str) -> bool:
    """A key of SWITCHES."""
    return bool(parse_bool(config.get(name)))


def is_quorum(config: Mapping[str, Any]) -> bool:
    """Whether quorum commit is asked for; Patroni before 4.0 takes that for off."""
    return str(config.get("synchronous_mode")).lower() == "quorum"


def synchronous_mode(config: Mapping[str, Any]) -> str:
    """As off, on or quorum.

    >>> [synchronous_mode({"synchronous_mode": mode}) for mode in ("yes", 1, "Quorum", "strict", None)]
    ['on', 'on', 'quorum', 'off', 'off']
    """
    if is_quorum(config):
        return "quorum"
    return "on" if is_on(config, "synchronous_mode") else "off"


def synchronous_node_count(config: Mapping[str, Any]) -> int:
    """How many standbys must answer: at least one where the mode is strict."""
    return max(number(config, "synchronous_node_count"), int(is_on(config, "synchronous_mode_strict")))


def primary_start_timeout(config: Mapping[str, Any]) -> int:
    """For how long a crashed leader is waited for, s; its older name counts where the newer one is not there."""
    name = "primary_start_timeout" if "primary_start_timeout" in config else "master_start_timeout"
    return number(config, name)


def is_standby_cluster(config: Mapping[str, Any]) -> bool:
    section = config.get("standby_cluster")
    return isinstance(section, dict) and any(section.get(key) for key in ("host", "port", "restore_command"))


def times(config: Mapping[str, Any], *, adjusted: bool = True) -> tuple[int, int, int]:
    """ttl, loop_wait and retry_timeout as Patroni takes them; /config keeps them raw. adjusted: it is 3.2 or later.

    >>> times({}), times({"ttl": "soon", "loop_wait": 0}), times({"ttl": 5, "loop_wait": 15, "retry_timeout": 15})
    ((30, 10, 10), (30, 1, 10), (20, 1, 9))
    """
    read = {name: plain_int(config.get(name)) for name in DEFAULTS}
    ttl, loop_wait, retry_timeout = (max(LEAST[n], DEFAULTS[n] if v is None else v) for n, v in read.items())
    if adjusted:
        loop_wait = max(LEAST["loop_wait"], min(loop_wait, ttl - 2 * retry_timeout))
        retry_timeout = min(retry_timeout, (ttl - LEAST["loop_wait"]) // 2)
    return ttl, loop_wait, retry_timeout


def refused(config: Mapping[str, Any]) -> list[str]:
    """The keys for which Patroni refuses timeouts and PostgreSQL's section and keeps the former (config.py).

    >>> refused({"ttl": "60s", "loop_wait": "5", "retry_timeout": None, "postgresql": {"parameters": "jit=off"}})
    ['ttl', 'retry_timeout', 'postgresql.parameters']
    """
    section = config.get("postgresql") or {}
    mappings = {"postgresql": section, "standby_cluster": config.get("standby_cluster") or {}}
    if isinstance(section, dict):
        mappings["postgresql.parameters"] = section.get("parameters") or {}
    odd = [name for name in DEFAULTS if name in config and plain_int(config[name]) is None]
    return odd + [name for name, value in mappings.items() if not isinstance(value, dict)]


def ignored(config: Mapping[str, Any]) -> dict[str, str]:
    """The keys whose value is none to Patroni, each with what it uses instead.

    >>> ignored({"maximum_lag_on_failover": "10MB", "synchronous_mode": "strict", "failsafe_mode": 1, "pause": None})
    {'maximum_lag_on_failover': '1048576', 'synchronous_mode': 'off'}
    """
    given = {name: value for name, value in config.items() if value is not None}
    numbers = {name: str(NUMBERS[name]) for name in NUMBERS if name in given and parse_int(given[name]) is None}
    return numbers | {
        name: "off"
        for name in SWITCHES
        if name in given and parse_bool(given[name]) is None and not (name == SWITCHES[1] and is_quorum(config))
    }


def stated(name: str, value: object) -> str:
    """A key and its value as YAML and JSON write them."""
    return f"{name}: {json.dumps(value, ensure_ascii=False, default=str)}"


_TAGS_SINCE = {"failover_priority": (3, 2), "nostream": (3, 3), "sync_priority": (4, 1)}
"""An older Patroni takes them for tags of a user's own (docs/releases.rst)."""


def known_tags(tags: Mapping[str, Any], version: tuple[int, ...]) -> dict[str, Any]:
    """The tags but those that Patroni of that version, () for unknown, does not go by.

    >>> known_tags({"failover_priority": 0, "nosync": True}, (3, 1, 2))
    {'nosync': True}
    """
    return {name: value for name, value in tags.items() if not version or version >= _TAGS_SINCE.get(name, ())}


def _barred(tags: Mapping[str, Any], flag: str, priority: str) -> str:
    """The flag wins where it is there, whatever it says; then a priority of at most 0 bars (tags.py, _bool_tag)."""
    if (given := tags.get(flag)) is not None:
        return stated(flag, given) if given else ""
    rank = parse_int(tags.get(priority))
    return stated(priority, tags[priority]) if rank is not None and rank <= 0 else ""


def nofailover(tags: Mapping[str, Any]) -> str:
    """The tag for which Patroni never promotes a member, with its value; "" where it may.

    >>> nofailover({"failover_priority": "0"}), nofailover({"nofailover": False, "failover_priority": 0})
    ('failover_priority: "0"', '')
    >>> nofailover({"nofailover": "no"})
    'nofailover: "no"'
    """
    return _barred(tags, "nofailover", "failover_priority")


def nosync(tags: Mapping[str, Any]) -> str:
    """The tag for which Patroni never names a member as synchronous, with its value; "" where it may."""
    return _barred(tags, "nosync", "sync_priority")


def nostream(tags: Mapping[str, Any]) -> str:
    """The tag for which a member follows the archive and no leader, with its value; "" where it streams."""
    return stated("nostream", tags["nostream"]) if parse_bool(tags.get("nostream")) else ""


def replicatefrom(tags: Mapping[str, Any]) -> str:
    """The tag for which a member follows another one while that is there, with its value; "" for none."""
    return stated("replicatefrom", given) if (given := tags.get("replicatefrom")) else ""


def misread(tags: Mapping[str, Any]) -> list[str]:
    """What Patroni reads otherwise than it looks: tags of two spellings that contradict each other, words, no numbers.

    >>> misread({"nofailover": "no", "failover_priority": "low", "nosync": False, "sync_priority": 0})
    ['failover_priority: "low" is no number: 1', 'nosync: false wins over sync_priority: 0', 'nofailover: "no" is on']
    """
    clauses = []
    for flag, priority in (("nofailover", "failover_priority"), ("nosync", "sync_priority")):
        given, rank = tags.get(priority), parse_int(tags.get(priority))
        if given is not None and rank is None:
            clauses.append(f"{stated(priority, given)} is no number: 1")
        if rank is not None and tags.get(flag) is not None and bool(tags[flag]) == (rank > 0):
            clauses.append(f"{stated(flag, tags[flag])} wins over {stated(priority, given)}")
    flags = [name for name in ("nofailover", "nosync", "noloadbalance", "clonefrom") if tags.get(name)]
    clauses += [f"{stated(name, tags[name])} is on" for name in flags if not parse_bool(tags[name])]
    stream = tags.get("nostream")
    return clauses + [f"{stated('nostream', stream)} is off"] * (stream is not None and parse_bool(stream) is None)
