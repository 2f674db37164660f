"""What each text of a group declares: parts of Patroni's configuration, resources of operators, servers, access path.

A text within a text (a ConfigMap's, SPILO_CONFIGURATION) is read as if it stood alone, its lines as in the file."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from walproof.model.declared import Place
from walproof.targets.files.access_path import DSN, SECTION, ClientsWay
from walproof.targets.files.reading import TOOK_TOO_LONG
from walproof.targets.files.settings import TABLE, is_conf
from walproof.targets.files.sources import IS_TEMPLATE, TEMPLATE, Group, Source
from walproof.targets.files.trees import Tree, documents, parts_of, tree_of

_OURS = re.compile(
    r"\bcnpg\.io|acid\.zalan\.do|postgres-operator\.crunchydata\.com|PATRONI_[A-Z]|SPILO_CONFIGURATION|\bPGHOST\b"
    r"|^[ \t]*\"?(?:dcs|loop_wait|restapi|scope)\"?\s*:|\[pgbouncer\]|haproxy\.cfg|postgresql\.conf",
    re.MULTILINE,
)
_ENV = re.compile(r"^[ \t]*(?:export\s+)?(?:(?:PATRONI|SPILO)_\w+|PGHOST)=", re.MULTILINE)
_COMMENT = re.compile(r"^[ \t]*[#;].*", re.MULTILINE)


def kind_of(name: str, text: str) -> str:
    """What to read it as: yaml, conf, haproxy, pgbouncer, env, service or clients; "" for none of these."""
    base, ours = re.sub(r"\.(j2|tpl|tmpl|template|erb)$", "", Path(name).name.lower()), bool(_OURS.search(text))
    clients = "service" if base.endswith("pg_service.conf") else "clients" * bool(DSN.search(text))
    if base.endswith((".yml", ".yaml", ".json")):
        return "yaml" if ours else clients
    if re.search(r"^[ \t]*\[pgbouncer\]", text, re.MULTILINE):
        return "pgbouncer"
    if len(SECTION.findall(text)) > 1:
        return "haproxy"
    if re.match(r"postgresql\b.*\.conf$", base) or (not ours and is_conf(text)):
        return "conf"
    return "env" if _ENV.search(text) else "yaml" if ours else clients


class PatroniPart(NamedTuple):
    """A patroni.yml, a container's environment, or a dynamic configuration alone."""

    tree: Tree
    scope: str = ""
    name: str = ""
    dcs: Tree | None = None


@dataclass(slots=True)
class Pieces:
    """Everything that a group of texts declares."""

    group: Group
    patroni: list[PatroniPart] = field(default_factory=list)
    resources: list[tuple[str, Tree]] = field(default_factory=list)
    confs: list[tuple[Path | None, Tree]] = field(default_factory=list)
    """Each with everything that it includes, and what is in effect over it."""
    way: ClientsWay = field(default_factory=ClientsWay)
    way_start: Place | None = None

    def read(self, name: str, source: Source) -> None:
        """A text that is called so, each document of YAML for itself; what cannot be read is skipped with a reason."""
        if self.group.reading.late:
            self.group.reading.skipped[Place(source.name, 0)] = TOOK_TOO_LONG
            return
        kind = kind_of(name, source.text)
        for part in parts_of(source, _OURS) if kind == "yaml" else [source] * bool(kind):
            place = Place(part.name, part.lines and part.lines + 1)
            if self.group.reading.late:
                self.group.reading.skipped[place] = TOOK_TOO_LONG
                return
            with self.group.or_skipped(place):
                if kind not in ("yaml", "haproxy", "clients") and TEMPLATE.search(_COMMENT.sub("", part.text)):
                    raise ValueError(IS_TEMPLATE)
                self._read(kind, part)
        if kind in ("yaml", "env", "service", "clients") and not source.above:  # a text within has them in its file
            self.way.read_strings(source, self.group.reading)
        if self.way.clients or kind in ("haproxy", "pgbouncer"):
            self.way_start = self.way_start or Place(source.name)

    def _read(self, kind: str, source: Source) -> None:
        path, group = source.path, self.group
        if kind == "yaml":
            for tree in documents(source, group.reading):
                if isinstance(tree, Tree):
                    self._document(tree, source)
        elif kind == "haproxy":
            self.way.read_haproxy(source, group.reading)
        elif kind != "clients":
            tree = tree_of(source, kind, group)
            if kind == "pgbouncer":
                self.way.read_pgbouncer(tree)
            elif kind == "service":
                for name, parameters in tree.items():
                    self.way.add_client(name, parameters, tree.at[name])
            elif kind == "env":
                self._environment(tree, source)
            else:
                auto = path and group.sources.get(path.with_name("postgresql.auto.conf"))
                self.confs.append((path, tree_of(auto, kind, group, tree) if auto and auto is not source else tree))

    def _document(self, tree: Tree, source: Source) -> None:
        group, kind = str(tree.get("apiVersion", "")).partition("/")[0], str(tree.get("kind", ""))
        if known := TABLE["resources"].get(f"{group}/{kind}"):
            self.resources.append((known, tree))
        elif kind.endswith("List") and isinstance(tree.get("items"), list):
            for item in tree["items"]:
                self._document(item, source)
        elif kind == "ConfigMap" and not source.above:
            data = tree.below("data")
            self._libpq(data)
            for name, value in data.items():
                self.read(name, source.within(str(value), data.at[name]))
        else:  # a patroni.yml or a dynamic configuration, itself or at some depth, and containers' environments
            for _, inner in tree.trees():
                local = "restapi" in inner or {"scope", "postgresql"} <= inner.keys()
                if local or "dcs" in (inner.get("bootstrap") or ()):
                    self._configuration(inner)
                    return
                if {"loop_wait", "ttl"} <= inner.keys():
                    self.patroni.append(PatroniPart(inner, dcs=inner))
                    return
                if any(key.startswith(("PATRONI_", "SPILO_", "PGHOST")) for key in inner):
                    self._environment(inner, source)

    def _configuration(self, tree: Tree, scope: str = "", name: str = "") -> None:
        dcs = tree.below("bootstrap", "dcs").without_placeholders()
        tree.below("tags").without_placeholders()
        self.patroni.append(PatroniPart(tree, str(tree.get("scope") or scope), str(tree.get("name") or name), dcs))

    def _environment(self, tree: Tree, source: Source) -> None:
        """A container's variables: its scope and name, and a configuration as text."""
        scope, name = (str(tree.get(key) or "") for key in ("PATRONI_SCOPE", "PATRONI_NAME"))
        nested = [key for key in ("SPILO_CONFIGURATION", "PATRONI_CONFIGURATION") if tree.get(key)]
        for key in nested:
            for inner in documents(source.within(str(tree[key]), tree.at[key]), self.group.reading):
                self._configuration(inner, scope, name)
        if not nested and (scope or name):
            self.patroni.append(PatroniPart(Tree(tree.start), scope, name))
        self._libpq(tree)

    def _libpq(self, tree: Tree) -> None:
        """The client that variables make of whatever libpq is in that container; {} without PGHOST."""
        if place := tree.at.get("PGHOST"):
            self.way.add_client(f"PGHOST of line {place.line}", tree, place, "environment")


def pieces_of(group: Group) -> Pieces:
    """All that these texts declare together; postgresql.auto.conf is in effect over the file beside it, not alone."""
    pieces = Pieces(group)
    for path, source in group.sources.items():
        if not path or path.name != "postgresql.auto.conf" or path.with_name("postgresql.conf") not in group.sources:
            pieces.read(source.name, source)
    return pieces
