"""What each text of a group declares: parts of Patroni's configuration, resources of operators, servers, access path.

A text within a text (a ConfigMap's, SPILO_CONFIGURATION) is read as if it stood alone, its lines as in the file."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from walproof.model.access_path import Client, Pool, Proxy
from walproof.model.declared import Place, Places, Skipped
from walproof.targets.files import access_path
from walproof.targets.files.documents import (
    IS_TEMPLATE,
    TEMPLATE,
    Document,
    containers,
    documents,
    key_values,
    without_placeholders,
    yaml_parts,
)
from walproof.targets.files.settings import TABLE, is_conf
from walproof.targets.files.sources import Includes, Source

_OURS = re.compile(
    r"\bcnpg\.io|acid\.zalan\.do|postgres-operator\.crunchydata\.com|PATRONI_[A-Z]|SPILO_CONFIGURATION"
    r"|^[ \t]*\"?(?:dcs|loop_wait|restapi|scope)\"?\s*:|\[pgbouncer\]|haproxy\.cfg|postgresql\.conf",
    re.MULTILINE,
)
_ENV = re.compile(r"^[ \t]*(?:export\s+)?(?:PATRONI|SPILO)_\w+=", re.MULTILINE)
_COMMENT = re.compile(r"^[ \t]*[#;].*", re.MULTILINE)
ODD = "its keys hold other kinds of values"


@dataclass(slots=True)
class PatroniPart:
    """A patroni.yml, a container's environment, or (not local) a dynamic configuration alone."""

    document: Document
    scope: str = ""
    name: str = ""
    dcs: Document | None = None
    local: bool = True


@dataclass(slots=True)
class Pieces:
    """Everything that a group of texts declares."""

    includes: Includes
    patroni: list[PatroniPart] = field(default_factory=list)
    resources: list[tuple[str, Document]] = field(default_factory=list)
    confs: list[tuple[Path | None, Document]] = field(default_factory=list)
    """Each with everything that it includes, and what is in effect over it."""
    proxies: list[Proxy] = field(default_factory=list)
    pools: list[Pool] = field(default_factory=list)
    clients: list[Client] = field(default_factory=list)
    access_places: Places = field(default_factory=Places)
    access_start: Place | None = None

    @property
    def skipped(self) -> Skipped:
        """What was not read."""
        return self.includes.skipped


def kind_of(name: str, text: str) -> str:
    """What to read it as: yaml, conf, haproxy, pgbouncer, env or clients; "" for none of these."""
    base = re.sub(r"\.(j2|tpl|tmpl|template|erb)$", "", Path(name).name.lower())
    clients = "clients" if base.endswith("pg_service.conf") or access_path.DSN.search(text) else ""
    if base.endswith((".yml", ".yaml", ".json")):
        return "yaml" if _OURS.search(text) else clients
    if re.search(r"^[ \t]*\[pgbouncer\]", text, re.MULTILINE):
        return "pgbouncer"
    if access_path.is_haproxy(text):
        return "haproxy"
    if re.match(r"postgresql\b.*\.conf$", base) or (not _OURS.search(text) and is_conf(text)):
        return "conf"
    return "env" if _ENV.search(text) else "yaml" if _OURS.search(text) else clients


def pieces_of(group: list[Source], skipped: Skipped, used: list[Path]) -> Pieces:
    """All that these texts declare together; what cannot be read is skipped with a reason."""
    named = {source.path: source for source in group}
    pieces = Pieces(Includes(named, skipped, used))
    for source in group:
        # postgresql.auto.conf is in effect over the file beside it, not on its own.
        path, kind = source.path, kind_of(source.name, source.text)
        if kind and not (path and path.name == "postgresql.auto.conf" and path.with_name("postgresql.conf") in named):
            _read(pieces, kind, source)
    return pieces


def _read(pieces: Pieces, kind: str, source: Source) -> None:
    """One text; each document of YAML for itself."""
    parts = list(yaml_parts(source.text, _OURS)) if kind == "yaml" else [(0, source.text)]
    for before, text in parts:
        try:
            if kind == "yaml":
                for document in documents(source.name, text, before):
                    if isinstance(document.value, dict):
                        _document(pieces, document, source.text)
            elif kind not in ("haproxy", "clients") and TEMPLATE.search(_COMMENT.sub("", text)):
                raise ValueError(IS_TEMPLATE)
            else:
                _read_lines(pieces, kind, source)
        except ValueError as wrong:
            pieces.skipped[Place(source.name, before and before + 1)] = str(wrong)
        except (TypeError, AttributeError, LookupError):
            pieces.skipped[Place(source.name, before and before + 1)] = ODD
    if kind in ("yaml", "env", "clients"):
        pieces.clients += access_path.clients(source, pieces.access_places)
    if pieces.clients or kind in ("haproxy", "pgbouncer"):
        pieces.access_start = pieces.access_start or Place(source.name)


def _read_lines(pieces: Pieces, kind: str, source: Source) -> None:
    """Of another kind than YAML."""
    path, grammar = source.path, "pgbouncer" if kind == "clients" else kind
    if kind == "haproxy":
        pieces.proxies += access_path.proxies(source, pieces.access_places, pieces.skipped)
    elif kind != "clients" or source.name.endswith("pg_service.conf"):
        document = key_values(source, grammar, pieces.includes)
        if kind == "pgbouncer":
            pieces.pools.append(access_path.pool(document, pieces.access_places))
        elif kind == "conf":
            auto = path and pieces.includes.named.get(path.with_name("postgresql.auto.conf"))
            if auto and auto is not source:
                document = document.over(key_values(auto, kind, pieces.includes))
            pieces.confs.append((path, document))
        elif kind == "env":
            _environment(pieces, document, source.text)
        else:
            pieces.clients += access_path.services(document, pieces.access_places)


def _document(pieces: Pieces, document: Document, text: str) -> None:
    tree = document.value
    group = str(tree.get("apiVersion", "")).partition("/")[0]
    if kind := TABLE["resources"].get(f"{group}/{tree.get('kind')}"):
        pieces.resources.append((kind, document))
    elif str(tree.get("kind", "")).endswith("List") and isinstance(tree.get("items"), list):
        for at in range(len(tree["items"])):
            _document(pieces, document.below("items", str(at)), text)
    elif tree.get("kind") == "ConfigMap":
        for key, value in document.mapping("data").items():
            if inner := kind_of(key, str(value)):
                place = document.places["data", key]
                _read(pieces, inner, Source(place.file, embedded(str(value), place, text)))
    else:
        _patroni(pieces, document, text)


def embedded(value: str, at: Place, text: str) -> str:
    """A text within a text, moved to the lines and the column where it stands there."""
    several = "\n" in value
    following = text.splitlines()[at.line] if several and text.count("\n") > at.line else ""
    indent = " " * (len(following) - len(following.lstrip()))
    return "\n" * (at.line - (not several)) + "".join(indent + line for line in value.splitlines(keepends=True))


def _patroni(pieces: Pieces, document: Document, text: str) -> None:
    """A patroni.yml or a dynamic configuration, itself or at some depth, and the environments of containers."""
    for path, inner in containers(document.value):
        its = document.below(*path) if path else document
        if isinstance(inner, list):
            if path[-1] in ("env", "environment"):
                _environment(pieces, _variables(its), text)
        elif "dcs" in (inner.get("bootstrap") or ()) or {"scope", "postgresql"} <= inner.keys() or "restapi" in inner:
            _configuration(pieces, its)
            return
        elif {"loop_wait", "ttl"} <= inner.keys():
            pieces.patroni.append(PatroniPart(its, dcs=its, local=False))
            return
        elif any(key.startswith(("PATRONI_", "SPILO_")) for key in inner):
            _environment(pieces, its, text)


def _variables(listed: Document) -> Document:
    """A container's variables of a list, with names and values or as NAME=VALUE, by name."""
    made = Document({}, listed.start)
    for at, item in enumerate(listed.value):
        key, _, value = str(item).partition("=")
        if isinstance(item, dict):
            key, value = str(item.get("name")), str(item.get("value") or "")
        made.value[key] = value
        made.places[key,] = listed.places.get((str(at), "value"), listed.places[str(at),])
    return made


def _configuration(pieces: Pieces, document: Document, scope: str = "", name: str = "") -> None:
    dcs = document.below("bootstrap", "dcs") if document.mapping("bootstrap", "dcs") else None
    tree = document.value
    without_placeholders([dcs.value if dcs else {}, document.mapping("tags")])
    pieces.patroni.append(PatroniPart(document, str(tree.get("scope") or scope), str(tree.get("name") or name), dcs))


def _environment(pieces: Pieces, document: Document, text: str) -> None:
    """A container's variables: its scope and name, and a configuration as text."""
    given = {key: str(value or "") for key, value in document.value.items()}
    scope, name = given.get("PATRONI_SCOPE", ""), given.get("PATRONI_NAME", "")
    nested = [key for key in ("SPILO_CONFIGURATION", "PATRONI_CONFIGURATION") if given.get(key)]
    for key in nested:
        for inner in documents(document.start.file, embedded(given[key], document.places[key,], text)):
            _configuration(pieces, inner, scope, name)
    if not nested and (scope or name):
        pieces.patroni.append(PatroniPart(Document({}, document.start, document.places), scope, name))
