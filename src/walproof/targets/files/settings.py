"""PostgreSQL's settings as files write them: postgresql.conf with what it includes, and values as pg_settings has them.

The grammar is guc-file.l's; numbers take their unit as guc.c does. Reads below the first file's folder, no links."""

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from walproof.errors import UsageError
from walproof.model.cnpg_facts import is_off
from walproof.model.declared import Place, Places
from walproof.model.facts import SettingFact
from walproof.model.guarantee import read_standby_names
from walproof.targets.files.sources import text_of

TABLE: dict[str, Any] = tomllib.loads((resources.files(__package__) / "settings.toml").read_text("utf-8"))
"""Of settings.toml: units, kinds, and managers' own values."""
_LINE = re.compile(r"\s*([A-Za-z_][\w.$]*)\s*=?\s*('(?:[^'\\]|''|\\.)*'|[^\s#']+)\s*(?:#.*)?")
_NUMBER = re.compile(r"\s*(-?[0-9]+(?:\.[0-9]+)?)\s*(us|ms|s|min|h|d|B|kB|MB|GB|TB)?\s*")
_TIMES = {"us": 1e-3, "ms": 1.0, "s": 1e3, "min": 6e4, "h": 3.6e6, "d": 8.64e7}
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
    unit, value = TABLE["units"].get(name, ""), text
    if name in TABLE["units"]:
        match = _NUMBER.fullmatch(text)
        factors = _TIMES if unit in _TIMES else _SIZES
        if match is None or (match[2] and (match[2] not in factors or not unit)):
            return None
        value = str(round(float(match[1]) * (factors[match[2]] / factors[unit] if match[2] else 1.0)))
    elif name in TABLE["words"]:
        value = _word(text.strip().lower(), TABLE["words"][name])
    elif name == "synchronous_standby_names":
        try:
            read_standby_names(text)
        except UsageError:
            return None
    where = (place.file, place.line) if place else ("", None)
    return (
        SettingFact(name, value, unit, "configuration file" if place else "default", *where)
        if value or name not in TABLE["words"]
        else None
    )


def _word(word: str, values: list[str]) -> str:
    """One of the values, where on and off are among them in any spelling (bool.c); "" for none of these."""
    if word in values or "on" not in values:
        return word if word in values else "replica" * (word in ("hot_standby", "archive"))
    return (
        "off" if is_off(word) else "on" * (word == "1" or any(word and yes.startswith(word) for yes in ("true", "yes")))
    )


def facts_of(
    written: Written, defaults: Mapping[str, str], places: Places, reasons: dict[str, str]
) -> dict[str, SettingFact]:
    """Settings by name, over the manager's own values; `reasons` gets those whose value PostgreSQL does not take."""
    facts = {name: fact_of(name, value) for name, value in defaults.items()}
    for name, (text, place) in written.items():
        places.add((name,), place, over=True)
        facts[name] = fact_of(name, text, place)
        if facts[name] is None:
            reasons[name] = f"{name} = {text!r} ({place.text}) is none that PostgreSQL takes"
    return {name: fact for name, fact in facts.items() if fact is not None}


def conf_lines(name: str, text: str) -> Iterator[tuple[str, str, Place]]:
    """Names, values and places of a postgresql.conf's lines; ValueError names a line that is none.

    >>> [(n, v) for n, v, _ in conf_lines("p", "Fsync off # no\\nlog_line_prefix = '%m''s '\\n#x = 1")]
    [('fsync', 'off'), ('log_line_prefix', "%m's ")]
    """
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"{name} line {number} is none of PostgreSQL's configuration: name = value")
        value = match[2]
        if value.startswith("'"):
            value = re.sub(r"\\(.)", r"\1", value[1:-1].replace("''", "'"))
        yield match[1].lower(), value, Place(name, number, match.start(1) + 1)


def is_conf(text: str) -> bool:
    """Whether every line is one of PostgreSQL's configuration, and one sets what a check reads.

    >>> is_conf("fsync = on"), is_conf("[mysqld]\\nmax_connections = 9"), is_conf("a = 1")
    (True, False, False)
    """
    try:
        names = {key for key, _, _ in conf_lines("", text)}
    except ValueError:
        return False
    return bool(names & {*TABLE["units"], *TABLE["words"], "synchronous_standby_names"})


def read_conf(name: str, path: Path | None, text: str, used: list[Path]) -> Written:
    """All that is in effect of a postgresql.conf, where the last one wins. `used` gets the files included.

    ValueError for a line that is none, an include that is missing, goes round in circles or leads out of the folder.
    """
    written: Written = {}
    for key, value, place in conf_lines(name, text):
        if key not in ("include", "include_if_exists", "include_dir"):
            written[key] = (value, place)
            continue
        inner = Path(os.path.normpath((path.parent if path else Path()) / value))
        if path is None or not inner.is_relative_to(path.parent):
            raise ValueError(f"it includes {value}, which is outside of its folder: name that file too")
        several = sorted(inner.glob("[!.]*.conf")) if key == "include_dir" and not inner.is_symlink() else []
        for one in several if key == "include_dir" else [inner]:
            if key == "include_if_exists" and not one.exists():
                continue
            if one in used or one == path:
                raise ValueError(f"it includes {value} twice, or in a circle")
            used.append(one)
            try:
                its = text_of(one)
            except OSError as wrong:
                raise ValueError(f"it includes {value}: {wrong.strerror or wrong}") from None
            written |= read_conf(str(Path(name).parent / one.relative_to(path.parent)), one, its, used)
    return written
