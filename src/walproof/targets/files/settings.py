"""PostgreSQL's settings as files write them, as pg_settings has them: numbers take their unit as guc.c does."""

import re
import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import Any

from walproof.errors import UsageError
from walproof.model.cnpg_facts import is_off
from walproof.model.declared import Place, Places
from walproof.model.facts import SECONDS, SettingFact
from walproof.model.guarantee import read_standby_names
from walproof.targets.files.reading import MOST_LINE

TABLE: dict[str, Any] = tomllib.loads((resources.files(__package__) / "settings.toml").read_text("utf-8"))
"""Of settings.toml: units, kinds, and managers' own values."""
UNITS: dict[str, str] = {name: unit for unit, names in TABLE["units"].items() for name in names}
WORDS: dict[str, list[str]] = {name: ["on", "off"] for name in TABLE["on_or_off"]} | TABLE["words"]
LINE = re.compile(r"(?P<key>[A-Za-z_][\w.$]*+)\s*+=?\s*+(?P<value>'(?:[^'\\]|''|\\.)*+'|[^\s#']++)\s*+(?:#.*)?")
"""Of postgresql.conf (guc-file.l); what one part took the next does not get back: in time of the line's length."""
_NUMBER = re.compile(r"\s*+(-?[0-9]{1,18}(?:\.[0-9]{1,18})?)\s*+(us|ms|s|min|h|d|B|kB|MB|GB|TB)?\s*")
_SIZES = {unit: float(1 << 10 * power) for power, unit in enumerate(("B", "kB", "MB", "GB", "TB"))}
Written = dict[str, tuple[str, Place]]
"""Values as written, by the setting's name in small letters, with their places."""


def fact_of(name: str, text: str, place: Place | None = None) -> SettingFact | None:
    """As pg_settings shows it; None for a value that PostgreSQL does not take. Without a place it is a default.

    >>> [fact_of(*it).text for it in (("wal_sender_timeout", "1min"), ("fsync", "F"), ("wal_keep_size", "2 GB"))]
    ['60000 ms', 'off', '2048 MB']
    >>> fact_of("max_connections", "many"), fact_of("commit_delay", "10ms")
    (None, None)
    """
    unit, value = UNITS.get(name, ""), text
    if name in UNITS:
        match, factors = _NUMBER.fullmatch(text), SECONDS if unit in SECONDS else _SIZES
        if match is None or (match[2] and (match[2] not in factors or not unit)):
            return None
        value = str(round(float(match[1]) * (factors[match[2]] / factors[unit] if match[2] else 1.0)))
    elif name in WORDS:
        value, words = text.strip().lower(), WORDS[name]
        if "on" in words and value not in words:  # any spelling of a boolean (bool.c)
            yes = value == "1" or any(value and word.startswith(value) for word in ("true", "yes"))
            value = "off" if is_off(value) else "on" * yes
        value = "replica" if name == "wal_level" and value in ("hot_standby", "archive") else value
        if value not in words:
            return None
    elif name == "synchronous_standby_names":
        try:
            read_standby_names(text)
        except UsageError:
            return None
    where = ("configuration file", place.file, place.line) if place else ("default", "", None)
    return SettingFact(name, value, unit, *where)


def facts_of(
    written: Written, defaults: Mapping[str, str], places: Places, reasons: dict[str, str]
) -> dict[str, SettingFact]:
    """Settings by name, over the manager's own values; `reasons` gets those whose value PostgreSQL does not take."""
    facts = {name: fact_of(name, value) for name, value in defaults.items()}
    for name, (text, place) in written.items():
        places.add((name,), place, over=True)
        places.add((f"{place.file}:{place.line}",), place)
        facts[name] = fact_of(name, text, place) if len(text) <= MOST_LINE else None
        if facts[name] is None:
            reasons[name] = f"{name} = {text[:200]!r} ({place.text}) is none that PostgreSQL takes"
    return {name: fact for name, fact in facts.items() if fact is not None}


def is_conf(text: str) -> bool:
    """Whether every line is one of PostgreSQL's configuration, and one sets what a check reads."""
    lines = [LINE.fullmatch(bare) for line in text.splitlines() if (bare := line.strip()) and bare[0] != "#"]
    names = {line["key"].lower() for line in lines if line}
    return all(lines) and bool(names & {*UNITS, *WORDS, "synchronous_standby_names"})
