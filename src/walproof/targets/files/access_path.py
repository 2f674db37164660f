"""haproxy.cfg and pgbouncer.ini as the access path, with the place of each section, server and setting."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field

from walproof.model.access_path import AccessPath, Pool, Proxy
from walproof.model.declared import Place, Places

_SECTION = re.compile(
    r"^(global|defaults|frontend|backend|listen|resolvers|peers|userlist|cache|mailers)\b[^:\n]*$", re.M
)
_TIME = re.compile(r"([0-9]+)(us|ms|s|m|h|d)?")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_POSTGRES = re.compile(r"pg|postgres|patroni", re.IGNORECASE)
_PORT = re.compile(r":(543[0-9]|6432)$")


def seconds(text: str) -> float | None:
    """A time of HAProxy's, ms without a unit (src/tools.c, parse_time_err); None for what is none.

    >>> seconds("3s"), seconds("1m"), seconds("5000"), seconds("soon")
    (3.0, 60.0, 5.0, None)
    """
    match = _TIME.fullmatch(text)
    return None if match is None else int(match[1]) * _SECONDS[match[2] or "ms"]


@dataclass(slots=True)
class _Section:
    """What a section says: the last words of each kind, and its servers' parameters after their address."""

    kind: str = ""
    name: str = ""
    words: dict[str, str] = field(default_factory=dict)
    servers: dict[str, list[str]] = field(default_factory=dict)


def is_haproxy(text: str) -> bool:
    """Whether it has HAProxy's sections.

    >>> is_haproxy("global\\n  maxconn 1\\nlisten pg\\n  bind *:5000"), is_haproxy("a: 1")
    (True, False)
    """
    return len(_SECTION.findall(text)) > 1


def proxies(name: str, text: str, places: Places) -> list[Proxy]:
    """Every section that leads to PostgreSQL."""
    defaults: dict[str, str] = {}
    made = []
    for section in _sections(name, text, places):
        if section.kind == "defaults":
            defaults = section.words
        words = defaults | section.words
        proxy = _proxy(section, words)
        leads = any(_PORT.search(words_of[0]) for words_of in section.servers.values() if words_of)
        leads = leads or bool(_POSTGRES.search(section.name)) or (proxy.asks_role and proxy.asks not in ("/", "script"))
        if section.kind in ("backend", "listen") and section.servers and leads and words.get("mode", "tcp") == "tcp":
            made.append(proxy)
    return made


def _sections(name: str, text: str, places: Places) -> Iterator[_Section]:
    section = _Section()
    for number, line in enumerate(text.splitlines(), 1):
        try:
            words = shlex.split(line, comments=True)
        except ValueError:  # a quote of a regular expression, which no check reads
            words = line.split()
        place = Place(name, number, len(line) - len(line.lstrip()) + 1)
        if _SECTION.match(line.strip()):
            yield section
            section = _Section(words[0], words[1] if len(words) > 1 else "")
            places.add((section.name,), place)
        elif words and words[0] in ("server", "server-template") and len(words) > 2:
            section.servers[words[1]] = words[3 if words[0] == "server-template" else 2 :]
            places.add((section.name, words[1]), place)
        elif said := _said(words):
            section.words[said[0]] = said[1]
            places.add((section.name, said[0]), place)
    yield section


def _said(words: list[str]) -> tuple[str, str] | None:
    """What else a line says that a check reads: a key and its value."""
    match words:
        case ["mode", mode, *_]:
            return "mode", mode
        case ["timeout", kind, time, *_]:
            return f"timeout-{kind}", time
        case ["default-server", *parameters]:
            return "default-server", " ".join(parameters)
        case ["option", "httpchk", *uri]:
            return "check", next((word for word in uri if word.startswith("/")), "/")
        case ["http-check", "send", *sent] if "uri" in sent[:-1]:
            return "check", sent[sent.index("uri") + 1]
        case ["option", "external-check", *_] | ["tcp-check", "expect", *_]:
            return "check", "script"
        case ["option", "pgsql-check" | "tcp-check" as kind, *_]:
            return "check", kind
    return None


def _proxy(section: _Section, words: dict[str, str]) -> Proxy:
    common = words.get("default-server", "").split()
    each = {name: [*common, *own[1:]] for name, own in section.servers.items()}
    after = {name: dict(zip(own, [*own[1:], ""], strict=True)) for name, own in each.items()}
    intervals = [seconds(own.get("inter", "2s")) or 0.0 for own in after.values()]
    return Proxy(
        section.name,
        tuple(each),
        words.get("check", "").partition("?")[0],
        tuple(name for name, own in each.items() if "check" not in own or "no-check" in own),
        tuple(name for name, own in after.items() if own.get("on-marked-down") != "shutdown-sessions"),
        max(intervals, default=2.0),
        max((int(fall) for own in after.values() if (fall := own.get("fall", "3")).isdigit()), default=3),
        seconds(words.get("timeout-server", "")),
    )


def access_path(haproxy: str, pgbouncer: str) -> AccessPath:
    """Of the two files' texts."""
    return AccessPath(tuple(proxies("", haproxy, Places())), (pool("pgbouncer", pgbouncer, Places()),))


def pool(name: str, text: str, places: Places) -> Pool:
    """pgbouncer.ini."""
    made, section = Pool(name), ""
    for number, line in enumerate(text.splitlines(), 1):
        key, equals, value = (part.strip() for part in line.partition("="))
        if key.startswith("["):
            section = key.strip("[]").lower()
        elif equals and not key.startswith((";", "#")):
            places.add((key,), Place(name, number, len(line) - len(line.lstrip()) + 1))
            if section == "databases":
                made.hosts[key] = (re.findall(r"\bhost\s*=\s*'?([^\s']+)", value) or [""])[0]
            elif section == "pgbouncer":
                made.settings[key.lower()] = value
    return made
