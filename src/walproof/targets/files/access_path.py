"""The clients' way in files: haproxy.cfg, pgbouncer.ini and connection strings, with the place of what checks read."""

import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import psycopg
from psycopg.conninfo import conninfo_to_dict

from walproof.model.access_path import CLIENT_PARAMETERS, AccessPath, Client, Pool, Proxy
from walproof.model.declared import Place, Places
from walproof.model.facts import SECONDS
from walproof.targets.files.reading import TOOK_TOO_LONG, Reading
from walproof.targets.files.settings import TABLE
from walproof.targets.files.sources import IS_TEMPLATE, Group, Source
from walproof.targets.files.trees import Tree, tree_of

SECTION = re.compile(
    r"^(global|defaults|frontend|backend|listen|resolvers|peers|userlist|cache|mailers)\b[^:\n]*$", re.MULTILINE
)
"""The first line of a section of HAProxy's."""
_SERVER = re.compile(r"server (\S+) (\S.*)|server-template (\S+) (?:([0-9]{1,9})-)?([0-9]{1,9}) (\S.*)")
_TEMPLATE = re.compile(r"^[ \t]*(\{\{|\{%|<%|(server|bind|listen|backend)\b.*(\{\{|\{%|<%))", re.MULTILINE)
_POSTGRES = re.compile(
    r"pg(?!.?(admin|hero|web|badger|watch|exporter))|postgres(?!.?exporter)|patroni(?!.?(api|rest))", re.I
)
_PORT = re.compile(r":(543[0-9]|6432)$")
_WEB_PORT = re.compile(r":(80|443|3000|5050|8[0-9]{3}|9[0-8][0-9]{2})$")
_LONGEST_NAME = 255
DSN = re.compile(
    r"(?:(?<![\w:+])|\bjdbc\\?:)postgres(?:ql)?\\?://(?:\\[:=#!]|[^\s\"'`<>\\])+"
    r"|\bhost=[^\s\"'`]{1,500}+(?:[ \t]++\w++=[^\s\"'`]{1,100}+){0,20}[ \t]++(?:dbname|user)=[^\"'`\n#]+"
)
"""A connection string of libpq's, as an address or as words, or an address of JDBC's; Java's properties escape some."""
_HOST = re.compile(r"\bhost\s*=\s*'?([^\s']+)")
_COMMENT = re.compile(r"(?:^|(?<=\s))#")
_KEY_OF_LINE = re.compile(r"[\s\"'-]*(?:export\s+)?([A-Za-z_][\w.-]*)[\"']?\s*[:=]")


def _seconds(text: str) -> float | None:
    """A time of HAProxy's, ms without a unit (src/tools.c, parse_time_err); None for what is none."""
    match = re.fullmatch(r"([0-9]{1,18})(us|ms|s|m|h|d)?", text)
    return int(match[1]) * (SECONDS | {"m": 60.0})[match[2] or "ms"] if match else None


class _Section(NamedTuple):
    """What a section says: the last words of each kind, over the defaults; its servers' address and parameters."""

    kind: str
    name: str
    words: dict[str, str]
    servers: dict[str, list[str]]

    def proxy(self, file: str) -> Proxy | None:
        """None where it does not lead to PostgreSQL: by its servers' ports, else by its name or what its check asks."""
        common, words = self.words.get("default-server", "").split(), self.words
        after = {name: dict(pairwise([*common, *own, ""])) for name, (_, *own) in self.servers.items()}
        proxy = Proxy(
            self.name,
            tuple(after),
            words.get("check", "").partition("?")[0],
            tuple(name for name, own in after.items() if "check" not in own or "no-check" in own),
            tuple(name for name, own in after.items() if own.get("on-marked-down") != "shutdown-sessions"),
            max((_seconds(own.get("inter", "2s")) or 0.0 for own in after.values()), default=2.0),
            max((int(fall[:9]) for own in after.values() if (fall := own.get("fall", "3")).isdecimal()), default=3),
            _seconds(words.get("timeout-server", "")),
            file,
        )
        addresses = [address for address, *_ in self.servers.values()]
        leads = any(map(_PORT.search, addresses)) or (proxy.asks_role and proxy.asks not in ("/", "script"))
        leads = leads or bool(_POSTGRES.search(self.name) and addresses and not any(map(_WEB_PORT.search, addresses)))
        return proxy if leads and self.kind in ("backend", "listen") and words.get("mode", "tcp") == "tcp" else None


def _servers(said: str, reading: Reading) -> dict[str, list[str]]:
    """The servers of a line, with their address and parameters: a template's are numbered.

    ValueError where it has no address, or they are too many for all that is read, or their names too long.

    >>> _servers("server-template pg 1-2 _pg._tcp.db:5432 check", Reading())
    {'pg1': ['_pg._tcp.db:5432', 'check'], 'pg2': ['_pg._tcp.db:5432', 'check']}
    """
    if (match := _SERVER.fullmatch(said)) is None:
        raise ValueError("it has no address")
    first, last = (1, 1) if match[1] else (int(match[4] or 1), int(match[5]))
    if len(match[1] or match[3]) > _LONGEST_NAME:
        raise ValueError(f"a server's name has over {_LONGEST_NAME} characters")
    reading.add_servers(max(0, last - first + 1))
    if match[1]:
        return {match[1]: match[2].split()}
    own = match[6].split()
    return {f"{match[3]}{n}": own for n in range(first, last + 1)}


@dataclass(slots=True)
class ClientsWay:
    """Proxies, pools and clients of a group of texts, and where what checks read of them is written."""

    proxies: list[Proxy] = field(default_factory=list)
    pools: list[Pool] = field(default_factory=list)
    clients: list[Client] = field(default_factory=list)
    places: Places = field(default_factory=Places)

    def read_haproxy(self, source: Source, reading: Reading) -> None:
        """Every section that leads to PostgreSQL; ValueError for a template."""
        if _TEMPLATE.search(source.text):
            raise ValueError(IS_TEMPLATE)
        section, defaults, sections = _Section("", "", {}, {}), dict[str, str](), []
        for line, place in reading.lines(source):
            try:
                words = shlex.split(line, comments=True)
            except ValueError:  # a quote of a regular expression, which no check reads
                words = line.split()
            said = " ".join(words)
            if SECTION.match(line):
                section = _Section(words[0], " ".join(words[1:2]), {} if words[0] == "defaults" else dict(defaults), {})
                defaults = section.words if words[0] == "defaults" else defaults
                sections.append(section)
                self.places.add((section.name,), place, source.name)
            elif words[:1] in (["server"], ["server-template"]):
                try:
                    servers = _servers(said, reading)
                except ValueError as wrong:
                    reading.skipped[place] = f"{said[:200]}: {wrong}"
                    continue
                section.servers.update(servers)
                for name in servers:
                    self.places.add((section.name, name), place, source.name)
            for rule in TABLE["haproxy"]:
                if match := re.fullmatch(rule["line"], said):
                    section.words[rule["key"]] = match[1] or rule.get("value", "")
                    self.places.add((section.name, rule["key"]), place, source.name)
                    break
        self.proxies += [proxy for section in sections if (proxy := section.proxy(source.name))]

    def read_pgbouncer(self, ini: Tree) -> None:
        for name, place in (one for key in ("databases", "pgbouncer") for one in ini.below(key).at.items()):
            self.places.add((name,), place, ini.start.file)
        matches = {name: _HOST.search(value) for name, value in ini.below("databases").items()}
        hosts = {name: match[1] if match else "" for name, match in matches.items()}
        settings = {key.lower(): value for key, value in ini.below("pgbouncer").items()}
        self.pools.append(Pool(ini.start.file, hosts, settings))

    def read_strings(self, source: Source, reading: Reading) -> None:
        """Clients that a text's connection strings make, as long as there is time."""
        for line, start in source.numbered():
            comment, key = _COMMENT.search(line), _KEY_OF_LINE.match(line)
            for match in DSN.finditer(line, 0, comment.start() if comment else len(line)):
                if reading.late:
                    reading.skipped[start] = TOOK_TOO_LONG
                    return
                said = re.sub(r"\\([:=#!])", r"\1", match[0])
                jdbc = said.startswith("jdbc:")
                place = replace(start, column=start.column + match.start())
                its_key = key is not None and key.end() <= match.start()
                name = f"{key[1] if key and its_key else 'connection'} of line {place.line}"
                address, _, query = said.removeprefix("jdbc:").partition("?")
                with suppress(psycopg.ProgrammingError):
                    its = conninfo_to_dict(address) | dict(parse_qsl(query)) if jdbc else conninfo_to_dict(said)
                    self.add_client(name, its, place, "jdbc" if jdbc else "libpq")

    def add_client(self, name: str, parameters: Mapping[str, Any], place: Place, kind: str = "libpq") -> None:
        """None where it is a socket, this machine, or a host that another program fills in. A password stays here."""
        names = "host", "hostaddr", "PGHOST", "PGHOSTADDR"
        written = next((str(parameters[host]) for host in names if parameters.get(host)), "")
        hosts = tuple(filter(None, written.split(",")))
        here = all(host.startswith(("/", "@", "localhost", "127.", "::1")) for host in hosts)
        if not here and not any(re.search(r"[${}<%]", host) for host in hosts):
            self.places.add((place.text,), place)
            own = {key: str(value) for key, value in parameters.items() if key in CLIENT_PARAMETERS}
            self.clients.append(Client(name, hosts, own, kind, place.text))

    @property
    def path(self) -> AccessPath:
        return AccessPath(tuple(self.proxies), tuple(self.pools), tuple(self.clients))


def access_path(haproxy: str, pgbouncer: str) -> AccessPath:
    """Of the two files' texts."""
    way = ClientsWay()
    way.read_haproxy(Source("", haproxy), Reading())
    way.read_pgbouncer(tree_of(Source("pgbouncer", pgbouncer), "pgbouncer", Group()))
    return way.path
