"""The clients' way in files: haproxy.cfg, pgbouncer.ini and connection strings, with the place of what checks read."""

import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from walproof.model.access_path import CLIENT_PARAMETERS, AccessPath, Client, Pool, Proxy
from walproof.model.declared import Place, Places, Skipped
from walproof.targets.files.documents import IS_TEMPLATE, Document, key_values
from walproof.targets.files.settings import TABLE
from walproof.targets.files.sources import Includes, Source

_SECTION = re.compile(
    r"^(global|defaults|frontend|backend|listen|resolvers|peers|userlist|cache|mailers)\b[^:\n]*$", re.M
)
_TEMPLATE = re.compile(r"^[ \t]*(\{\{|\{%|<%|(server|bind|listen|backend)\b.*(\{\{|\{%|<%))", re.MULTILINE)
_TIME = re.compile(r"([0-9]+)(us|ms|s|m|h|d)?")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_POSTGRES = re.compile(
    r"pg(?!.?(admin|hero|web|badger|watch|exporter))|postgres(?!.?exporter)|patroni(?!.?(api|rest))", re.I
)
_PORT = re.compile(r":(543[0-9]|6432)$")
_WEB_PORT = re.compile(r":(80|443|3000|5050|8[0-9]{3}|9[0-8][0-9]{2})$")
_MOST_SERVERS = 100
DSN = re.compile(
    r"(?<![\w:+])postgres(?:ql)?://[^\s\"'`<>\\]+"
    r"|\bhost=[^\s\"'`]{1,500}(?:[ \t]+\w+=[^\s\"'`]{1,100}){0,20}[ \t]+(?:dbname|user)=[^\"'`\n#]+"
)
"""A connection string of libpq's, as an address or as words."""
_KEY_OF_LINE = re.compile(r"[\s\"'-]*(?:export\s+)?([A-Za-z_][\w.-]*)[\"']?\s*[:=]")


def seconds(text: str) -> float | None:
    """A time of HAProxy's, ms without a unit (src/tools.c, parse_time_err); None for what is none.

    >>> seconds("3s"), seconds("1m"), seconds("5000"), seconds("soon")
    (3.0, 60.0, 5.0, None)
    """
    match = _TIME.fullmatch(text)
    return None if match is None else int(match[1]) * _SECONDS[match[2] or "ms"]


@dataclass(slots=True)
class _Section:
    """What a section says: the last words of each kind, and its servers' address and parameters."""

    kind: str = ""
    name: str = ""
    words: dict[str, str] = field(default_factory=dict)
    servers: dict[str, list[str]] = field(default_factory=dict)

    def leads_to_postgres(self, proxy: Proxy, words: dict[str, str]) -> bool:
        """By its servers' ports, else by its name or what its check asks."""
        ports = [its[0] for its in self.servers.values()]
        named = bool(_POSTGRES.search(self.name)) and not any(map(_WEB_PORT.search, ports))
        asks = proxy.asks_role and proxy.asks not in ("/", "script")
        leads = named or asks or any(map(_PORT.search, ports))
        return leads and self.kind in ("backend", "listen") and bool(ports) and words.get("mode", "tcp") == "tcp"


def is_haproxy(text: str) -> bool:
    """Whether it has HAProxy's sections.

    >>> is_haproxy("global\\n  maxconn 1\\nlisten pg\\n  bind *:5000"), is_haproxy("a: 1")
    (True, False)
    """
    return len(_SECTION.findall(text)) > 1


def proxies(source: Source, places: Places, skipped: Skipped) -> list[Proxy]:
    """Every section that leads to PostgreSQL; ValueError for a template."""
    if _TEMPLATE.search(source.text):
        raise ValueError(IS_TEMPLATE)
    defaults: dict[str, str] = {}
    made = []
    for section in _sections(source, places, skipped):
        if section.kind == "defaults":
            defaults = section.words
        words = defaults | section.words
        proxy = _proxy(section, words)
        if section.leads_to_postgres(proxy, words):
            made.append(proxy)
    return made


def _sections(source: Source, places: Places, skipped: Skipped) -> Iterator[_Section]:
    section = _Section()
    for number, line in enumerate(source.text.splitlines(), 1):
        try:
            words = shlex.split(line, comments=True)
        except ValueError:  # a quote of a regular expression, which no check reads
            words = line.split()
        place = Place(source.name, number, len(line) - len(line.lstrip()) + 1)
        if _SECTION.match(line.strip()):
            yield section
            section = _Section(words[0], words[1] if len(words) > 1 else "")
            places.add((section.name,), place)
        elif words and words[0] in ("server", "server-template"):
            servers = _servers(words)
            if not servers:
                skipped[place] = f"{' '.join(words)}: it has no address"
            for name, its in servers.items():
                section.servers[name] = its
                places.add((section.name, name), place)
        elif said := _said(" ".join(words)):
            section.words[said[0]] = said[1]
            places.add((section.name, said[0]), place)
    yield section


def _servers(words: list[str]) -> dict[str, list[str]]:
    """The servers of a line, with their address and parameters: a template's are numbered; none without an address.

    >>> _servers("server-template pg 1-2 _pg._tcp.db:5432 check".split())
    {'pg1': ['_pg._tcp.db:5432', 'check'], 'pg2': ['_pg._tcp.db:5432', 'check']}
    """
    match words:
        case ["server", name, *its] if its:
            return {name: its}
        case ["server-template", prefix, count, *its] if its and (span := re.fullmatch(r"(?:(\d+)-)?(\d+)", count)):
            first, last = int((span[1] or "1")[:9]), int(span[2][:9])
            return {f"{prefix}{number}": its for number in range(first, min(last, first + _MOST_SERVERS) + 1)}
    return {}


def _said(line: str) -> tuple[str, str] | None:
    """What else a line says that a check reads: a key and its value.

    >>> _said("option httpchk GET /primary?x HTTP/1.1"), _said("option httpchk"), _said("no option httpchk")
    (('check', '/primary?x'), ('check', '/'), ('check', ''))
    """
    for said in TABLE["haproxy"]:
        if match := re.fullmatch(said["line"], line):
            return said["key"], match[1] or said.get("value", "")
    return None


def _proxy(section: _Section, words: dict[str, str]) -> Proxy:
    common = words.get("default-server", "").split()
    each = {name: [*common, *own[1:]] for name, own in section.servers.items()}
    after = {name: dict(zip(own, [*own[1:], ""], strict=False)) for name, own in each.items()}
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
    made = key_values(Source("pgbouncer", pgbouncer), "pgbouncer", Includes({}, {}))
    return AccessPath(tuple(proxies(Source("", haproxy), Places(), {})), (pool(made, Places()),))


def pool(document: Document, places: Places) -> Pool:
    """pgbouncer.ini."""
    for (_, *key), place in document.places.items():
        places.add(tuple(key), place)
    hosts = document.mapping("databases").items()
    settings = {key.lower(): value for key, value in document.mapping("pgbouncer").items()}
    return Pool(
        document.start.file,
        {name: (re.findall(r"\bhost\s*=\s*'?([^\s']+)", value) or [""])[0] for name, value in hosts},
        settings,
    )


def clients(source: Source, places: Places) -> list[Client]:
    """Those that a text's connection strings make; a host that another program fills in is not known."""
    made = []
    for match in DSN.finditer(source.text):
        start = source.text.rfind("\n", 0, match.start()) + 1
        before, number = source.text[start : match.start()], source.text.count("\n", 0, start) + 1
        if re.search(r"(^|\s)#", before):
            continue
        key = _KEY_OF_LINE.match(before)
        name = f"{key[1] if key else 'connection'} of line {number}"
        place = Place(source.name, number, len(before) + 1)
        with suppress(psycopg.ProgrammingError):
            made += _client(name, conninfo_to_dict(match[0]), place, places)
    return made


def services(document: Document, places: Places) -> list[Client]:
    """Those of a pg_service.conf's sections."""
    made = []
    for name, parameters in document.value.items():
        if isinstance(parameters, dict):
            made += _client(name, parameters, document.places[name, next(iter(parameters))], places)
    return made


def _client(name: str, parameters: Mapping[str, Any], place: Place, places: Places) -> list[Client]:
    """None where it is a socket, this machine, or not known. A password stays here."""
    hosts = tuple(filter(None, str(parameters.get("host") or parameters.get("hostaddr") or "").split(",")))
    here = all(host.startswith(("/", "@", "localhost", "127.", "::1")) for host in hosts)
    if here or any(re.search(r"[${}<%]", host) for host in hosts):
        return []
    places.add(("host",), place, name)
    return [Client(name, hosts, {key: str(parameters[key]) for key in CLIENT_PARAMETERS if key in parameters})]
