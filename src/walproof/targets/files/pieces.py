"""What each text of a group declares: parts of Patroni's configuration, resources of operators, servers, access path.

A text within a text (a ConfigMap's, SPILO_CONFIGURATION) is read as if it stood alone, its lines as in the file."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from walproof.model.access_path import Pool, Proxy
from walproof.model.declared import Place, Places
from walproof.targets.files import access_path
from walproof.targets.files.settings import Written, is_conf, read_conf
from walproof.targets.files.sources import Source
from walproof.targets.files.yaml_documents import Document, documents

_TEMPLATE = re.compile(r"\{\{|\{%|<%")
_OURS = re.compile(
    r"postgresql\.cnpg\.io|acid\.zalan\.do|postgres-operator\.crunchydata\.com|PATRONI_[A-Z]|SPILO_CONFIGURATION"
    r"|^\s*\"?(?:dcs|loop_wait|restapi|scope)\"?\s*:|\[pgbouncer\]|haproxy\.cfg|postgresql\.conf",
    re.MULTILINE,
)
_ENV = re.compile(r"^\s*(?:export\s+)?((?:PATRONI|SPILO)_\w+)=(.*)$", re.MULTILINE)
RESOURCES = {
    ("postgresql.cnpg.io", "Cluster"): "cnpg",
    ("postgresql.cnpg.io", "Pooler"): "pooler",
    ("acid.zalan.do", "postgresql"): "zalando",
    ("postgres-operator.crunchydata.com", "PostgresCluster"): "crunchy",
}
"""What is read of Kubernetes, by the group of its API and its kind."""


@dataclass(slots=True)
class PatroniPart:
    """A patroni.yml, a container's environment, or (not local) a dynamic configuration alone."""

    document: Document
    scope: str = ""
    name: str = ""
    dcs: Document | None = None
    local: bool = True


@dataclass(slots=True)
class Conf:
    """A postgresql.conf with everything that it includes."""

    name: str
    path: Path | None
    written: Written
    standby: bool


@dataclass(slots=True)
class Pieces:
    """Everything that a group of texts declares."""

    patroni: list[PatroniPart] = field(default_factory=list)
    resources: list[tuple[str, Document]] = field(default_factory=list)
    confs: list[Conf] = field(default_factory=list)
    proxies: list[Proxy] = field(default_factory=list)
    pools: list[Pool] = field(default_factory=list)
    access_places: Places = field(default_factory=Places)
    access_start: Place | None = None
    skipped: dict[str, str] = field(default_factory=dict)


def kind_of(name: str, text: str) -> str:
    """What to read it as: yaml, conf, haproxy, pgbouncer or env; "" for none of these."""
    base = Path(name).name.lower()
    if base.endswith((".yml", ".yaml", ".json")):
        return "yaml" if _OURS.search(text) else ""
    if re.search(r"^\s*\[pgbouncer\]", text, re.MULTILINE):
        return "pgbouncer"
    if access_path.is_haproxy(text):
        return "haproxy"
    if re.match(r"postgresql\b.*\.conf$", base) or (not _OURS.search(text) and is_conf(text)):
        return "conf"
    return "env" if _ENV.search(text) else "yaml" if _OURS.search(text) else ""


def pieces_of(group: list[Source], included: list[Path]) -> Pieces:
    """All that these texts declare together; what cannot be read is skipped with a reason.

    `included` gets the files that a postgresql.conf includes: they are none of their own.
    """
    pieces = Pieces()
    # postgresql.auto.conf is in effect over the file beside it, not on its own.
    confs = {source.path: source for source in group if source.path and source.path.name.endswith(".conf")}
    for source in group:
        path, kind = source.path, kind_of(source.name, source.text)
        if not kind or (path and path.name == "postgresql.auto.conf" and path.with_name("postgresql.conf") in confs):
            continue
        try:
            if kind != "haproxy" and _TEMPLATE.search(source.text):
                raise ValueError("it is a template: fill it in first (helm template, kustomize build, ansible --diff)")
            _read(pieces, kind, source, included)
            auto = confs.get(path.with_name("postgresql.auto.conf")) if path and kind == "conf" else None
            if auto and auto is not source:
                pieces.confs[-1].written |= read_conf(auto.name, auto.path, auto.text, [])
        except ValueError as wrong:
            pieces.skipped[source.name] = str(wrong)
        except (TypeError, AttributeError, LookupError):
            pieces.skipped[source.name] = "its keys hold other kinds of values"
    return pieces


def _read(pieces: Pieces, kind: str, source: Source, included: list[Path]) -> None:
    name, text, path = source.name, source.text, source.path
    if kind in ("haproxy", "pgbouncer"):
        pieces.access_start = pieces.access_start or Place(name)
        pieces.proxies += access_path.proxies(name, text, pieces.access_places) if kind == "haproxy" else []
        pieces.pools += [access_path.pool(name, text, pieces.access_places)] if kind == "pgbouncer" else []
    elif kind == "conf":
        written = read_conf(name, path, text, included)
        signal = path is not None and path.with_name("standby.signal").exists()
        pieces.confs.append(Conf(name, path, written, signal or bool(written.get("primary_conninfo", ("",))[0])))
    elif kind == "env":
        found = {m[1]: (m[2].strip().strip("'\""), text.count("\n", 0, m.start(1)) + 1) for m in _ENV.finditer(text)}
        places: dict[tuple[str, ...], Place] = {(key,): Place(name, line) for key, (_, line) in found.items()}
        _environment(pieces, Document({key: value for key, (value, _) in found.items()}, Place(name), places), text)
    else:
        for document in documents(name, text):
            if isinstance(document.value, dict):
                _document(pieces, document, text, included)


def _document(pieces: Pieces, document: Document, text: str, included: list[Path]) -> None:
    tree = document.value
    kind = RESOURCES.get((str(tree.get("apiVersion", "")).partition("/")[0], str(tree.get("kind"))))
    if kind:
        pieces.resources.append((kind, document))
    elif str(tree.get("kind", "")).endswith("List") and isinstance(tree.get("items"), list):
        for at in range(len(tree["items"])):
            _document(pieces, document.below("items", str(at)), text, included)
    elif tree.get("kind") == "ConfigMap":
        for key, value in document.mapping("data").items():
            if inner := kind_of(key, str(value)):
                place = document.places["data", key]
                _read(pieces, inner, Source(place.file, embedded(str(value), place, text)), included)
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
    for path, inner in _containers(document.value, ()):
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


def _containers(tree: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, tree
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        if isinstance(value, dict | list):
            yield from _containers(value, (*path, str(key)))


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
    for _, inner in _containers(dcs.value if dcs else {}, ()):
        for key, value in inner.items() if isinstance(inner, dict) else ():
            if isinstance(value, str) and re.search(r"\$[({]\w", value) and "command" not in key:
                raise ValueError(f"another program fills in {key}: give the file as it fills it in (envsubst)")
    tree = document.value
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
