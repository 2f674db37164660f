"""Clusters as a group of texts declares them: the facts that live targets gather, and what no file says of them.

Each operator's resource is a cluster, and so is each scope of Patroni and, without Patroni, each postgresql.conf;
HAProxy and PgBouncer belong to the first cluster of their group, and are one of their own where there is no other."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from walproof.errors import Error, UsageError
from walproof.model.access_path import AccessPath, Pool, reads_by_name
from walproof.model.declared import Declared, Place, Places, Skipped
from walproof.model.facts import Facts, MemberFacts, PatroniFacts, PatroniMember, Sender, SettingFact
from walproof.model.guarantee import Quorum, QuorumKind, read_standby_names
from walproof.model.patroni_values import is_on, is_standby_cluster, refused, synchronous_node_count
from walproof.targets.cnpg.objects import Cluster, read
from walproof.targets.cnpg.state_and_doctor_facts import State
from walproof.targets.cnpg.state_and_doctor_facts import facts_of as cnpg_facts
from walproof.targets.files.documents import IS_TEMPLATE, TEMPLATE, Document, without_placeholders
from walproof.targets.files.pieces import ODD, PatroniPart, Pieces, pieces_of
from walproof.targets.files.settings import TABLE, Written, facts_of
from walproof.targets.files.sources import Sources

_NO_MEMBERS = {"members": "no file says how many members there are (give every member's file, or haproxy.cfg)"}
_NO_PATRONI = {"patroni": "no file configures Patroni", "tags": "no file configures Patroni"}
_NO_CNPG = {"cnpg": "no file is a CloudNativePG Cluster"}
_FOLLOWS = "it is a standby cluster: check the files of the cluster that it follows"
_NAMES, _LEVEL = "synchronous_standby_names", "synchronous_commit"
_UNKNOWN = ("standby1", "standby2")


@dataclass(slots=True)
class _Draft:
    """What is being put together of one cluster."""

    name: str
    start: Place
    absent: dict[str, str]
    places: Places = field(default_factory=Places)

    def keys(self, document: Document, member: str = "") -> None:
        for path, place in document.places.items():
            self.places.add(path, place, member)
            self.places.add(path, place)

    def declared(self, members: Iterable[MemberFacts], **parts: Any) -> Declared:
        return Declared(Facts(self.name, tuple(members), **parts), self.start, self.places, self.absent)


def declared_by(sources: Sources) -> tuple[list[Declared], Skipped]:
    """Every cluster that the texts declare, and what of them could not be read, each with the reason."""
    skipped, included = dict(sources.skipped), list[Path]()
    groups = [pieces_of(group, skipped, included) for group in sources.groups]
    for pieces in groups:
        pieces.confs = [(path, conf) for path, conf in pieces.confs if path not in included]
    return [one for pieces in groups for one in _clusters(pieces)], skipped


def _clusters(pieces: Pieces) -> list[Declared]:
    made = list(_resources(pieces))
    named = list(dict.fromkeys(part.scope for part in pieces.patroni if part.scope))
    for scope in named or [""] * bool(pieces.patroni):
        # Parts without a scope belong to the first one.
        parts = [part for part in pieces.patroni if part.scope in (scope, "" if scope in named[:1] else scope)]
        if (one := _patroni(pieces, scope, parts)) is not None:
            made.append(one)
    made += [_plain(*conf) for conf in pieces.confs]
    if pieces.access_start is None:
        return made
    if not made:
        absent = {"settings": "no file has PostgreSQL's settings", **_NO_PATRONI, **_NO_CNPG, **_NO_MEMBERS}
        made = [Declared(Facts("clients' way", ()), pieces.access_start, absent=absent)]
    pools = (*made[0].facts.access.pools, *pieces.pools)
    path = AccessPath(tuple(pieces.proxies), pools, tuple(pieces.clients))
    made[0] = replace(made[0], facts=replace(made[0].facts, access=path))
    made[0].places.merge(pieces.access_places)
    return made


def _resources(pieces: Pieces) -> Iterator[Declared]:
    clusters = {_name(document) for kind, document in pieces.resources if kind == "cnpg"}
    for kind, document in pieces.resources:
        try:
            if kind == "cnpg":
                yield _cnpg(document, pieces.resources)
            elif kind == "pooler" and document.mapping("spec", "cluster").get("name") not in clusters:
                absent = {"settings": "the Pooler's Cluster is in no file", **_NO_PATRONI, **_NO_CNPG, **_NO_MEMBERS}
                draft = _Draft(f"Pooler {_name(document)}", document.start, absent)
                yield draft.declared((), access=AccessPath(pools=(_pool(draft, document),)))
            elif kind in ("zalando", "crunchy"):
                yield _operator(kind, document)
        except (Error, TypeError, ValueError, AttributeError, LookupError) as wrong:
            own = str(wrong) if type(wrong) is ValueError else ODD
            why = wrong.message if isinstance(wrong, Error) else own
            pieces.skipped[document.start] = IS_TEMPLATE if TEMPLATE.search(str(document.value)) else why


def _name(document: Document) -> str:
    return str(document.mapping("metadata").get("name"))


def _pool(draft: _Draft, pooler: Document) -> Pool:
    draft.keys(pooler, _name(pooler))
    settings = {key: str(value) for key, value in pooler.mapping("spec", "pgbouncer", "parameters").items()}
    paused = pooler.mapping("spec", "pgbouncer").get("paused") is True
    return Pool(_name(pooler), {}, settings, int(pooler.mapping("spec").get("instances", 1)), paused=paused)


def _written(document: Document | None, *path: str) -> Written:
    """PostgreSQL's settings at this path."""
    return {
        name.lower(): (_text(value), document.places.get((*path, name), document.start))
        for name, value in (document.mapping(*path).items() if document else ())
        if document and not isinstance(value, dict | list)
    }


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "" if value is None else str(value)


def _server(name: str, settings: dict[str, SettingFact], streaming: Iterable[str] | None = None) -> MemberFacts:
    """A standby, or with those that stream from it the leader, as it will be."""
    if streaming is None:
        return MemberFacts(name, settings=settings, receiver_status="streaming", receiver_name=name, monitor=True)
    counting = read_standby_names(settings[_NAMES].value) if _NAMES in settings else None
    state = "quorum" if counting else "async"
    senders = tuple(Sender(one, sync_state=state, slot=one) for one in streaming)
    return MemberFacts(name, leader=True, settings=settings, senders=senders, monitor=True)


def _with_names(settings: dict[str, SettingFact], names: str) -> dict[str, SettingFact]:
    """The names that a manager will write, and the level where no file sets it."""
    return {_LEVEL: SettingFact(_LEVEL, "on")} | settings | {_NAMES: SettingFact(_NAMES, names)}


def _cnpg(document: Document, resources: list[tuple[str, Document]]) -> Declared:
    tree = _without_nulls(document.value)
    tree["metadata"].setdefault("namespace", "default")
    if parameters := document.mapping("spec", "postgresql", "parameters"):
        tree["spec"]["postgresql"]["parameters"] = {name: _text(value) for name, value in parameters.items()}
    facts = cnpg_facts(State(read(Cluster, tree), {}))
    draft = _Draft(f"CloudNativePG {facts.name}", document.start, dict(_NO_PATRONI))
    draft.keys(document)
    facts = replace(facts, services_of_all=tuple(_services_of_all(draft, facts.name, resources)))
    poolers = [one for kind, one in resources if kind == "pooler"]
    its = [one for one in poolers if one.mapping("spec", "cluster").get("name") == facts.name]
    written = _written(document, "spec", "postgresql", "parameters")
    settings = facts_of(written, TABLE["cnpg"], draft.places, draft.absent)
    first, *others = [f"{facts.name}-{number}" for number in range(1, max(1, facts.instances) + 1)]
    sync, names = facts.synchronous, ""
    if sync is not None:
        named = (*sync.ahead, *others[: sync.named_instances], *sync.behind)
        kind = QuorumKind.FIRST if sync.method == "first" else QuorumKind.ANY
        number = sync.number if sync.required else min(sync.number, len(named))
        names = Quorum(kind, number, named).text if named and number else ""
    settings = _with_names(settings, names)
    if facts.replica:
        draft.absent["settings"] = "a replica cluster takes no commits of its own"
    leader = _server(first, settings, None if facts.replica else (*others, *(sync.elsewhere if sync else ())))
    members = (leader, *(_server(one, settings) for one in others))
    return draft.declared(members, cnpg=facts, access=AccessPath(pools=tuple(_pool(draft, one) for one in its)))


def _services_of_all(draft: _Draft, cluster: str, resources: list[tuple[str, Document]]) -> Iterator[str]:
    """Services whose selector names the Cluster and no role; the operator's own poolers have a name of their own."""
    for kind, one in resources:
        selector = one.mapping("spec", "selector")
        roles = {"cnpg.io/instanceRole", "role", "cnpg.io/instanceName", "cnpg.io/poolerName"}
        if kind == "service" and selector.get("cnpg.io/cluster") == cluster and not roles & selector.keys():
            draft.places.add(("selector",), one.places["spec", "selector"], _name(one))
            if not reads_by_name(_name(one)):
                yield _name(one)


def _without_nulls(tree: Any) -> Any:
    """As Kubernetes takes it: a key of no value is not there."""
    if isinstance(tree, dict):
        return {key: _without_nulls(value) for key, value in tree.items() if value is not None}
    return [_without_nulls(one) for one in tree] if isinstance(tree, list) else tree


def _operator(kind: str, document: Document) -> Declared:
    """A resource of Zalando's or Crunchy's operator, which make Patroni's configuration of it."""
    keys, spec, name = TABLE[kind], document.mapping("spec"), _name(document)
    patroni, standby = document.mapping("spec", "patroni"), document.mapping("spec", "standby")
    config, count = dict(document.mapping(*keys["patroni"])), spec.get("numberOfInstances", 1)
    if kind == "crunchy":
        config |= {
            "ttl": patroni.get("leaderLeaseDurationSeconds", 30),
            "loop_wait": patroni.get("syncPeriodSeconds", 10),
        }
        count = sum(int(one.get("replicas", 1)) for one in spec.get("instances") or [{}])
    if standby.get("enabled", kind == "zalando" and bool(standby)):
        raise UsageError(_FOLLOWS)
    without_placeholders(config)
    section = config.get("postgresql")
    config["postgresql"] = {"use_pg_rewind": True} | (section if isinstance(section, dict) else {})
    draft = _Draft(f"{kind.capitalize()} {name}", document.start, dict(_NO_CNPG))
    draft.keys(document)
    pools, pooler = [], tuple(keys["pooler"])
    if pooler in document.places or (kind == "zalando" and spec.get("enableConnectionPooler") is True):
        key, its = (*pooler, keys["count"]), document.mapping(*pooler)
        pools.append(Pool(f"{name}'s pooler", instances=int(its.get(key[-1], keys["poolers"])), key=".".join(key)))
        draft.places.add(key, document.places.get(pooler, document.start))
    tags: dict[str, dict[str, Any]] = {f"{name}-{number}": {} for number in range(int(count))}
    made = _of_patroni(draft, config, tags, {"": _written(document, *keys["parameters"])})
    return replace(made, facts=replace(made.facts, access=AccessPath(pools=tuple(pools))))


def _patroni(pieces: Pieces, scope: str, parts: list[PatroniPart]) -> Declared | None:
    """The parts of one scope: the first dynamic configuration among them, and each member's own part."""
    source = next((part.dcs for part in parts if part.dcs is not None), None)
    start = source.start if source is not None else parts[0].document.start
    draft = _Draft(f"Patroni {scope}".strip(), start, dict(_NO_CNPG))
    config: dict[str, Any] = dict(source.value) if source is not None else {}
    if is_standby_cluster(config):
        pieces.skipped[start] = _FOLLOWS
        return None
    if source is None:
        draft.absent["patroni"] = "no file holds bootstrap.dcs: the dynamic configuration is in the DCS alone"
    else:
        draft.keys(source)
    tags: dict[str, dict[str, Any]] = {}
    written = {"": _written(source, "postgresql", "parameters")}
    for part in (part for part in parts if part.local):
        member, own = part.name or part.document.start.file, _written(part.document, "postgresql", "parameters")
        draft.keys(part.document, member)
        tags[member] = dict(part.document.mapping("tags"))
        # What must be the same everywhere Patroni takes of the dynamic configuration alone (CMDLINE_OPTIONS).
        written[member] = {name: its for name, its in own.items() if name not in TABLE["patroni"]}
        if source is not None and not refused(config):
            section = {k: v for k, v in part.document.mapping("postgresql").items() if k != "parameters"}
            config["postgresql"] = (config.get("postgresql") or {}) | section
    servers = max((proxy.servers for proxy in pieces.proxies), key=len, default=())
    for server in servers if len(servers) > len(tags) else ():
        if server not in tags and len(tags) < len(servers):
            tags[server] = {}
    if len(tags) < 2:
        draft.absent |= _NO_MEMBERS
        tags |= {name: {} for name in _UNKNOWN}
    return _of_patroni(draft, config, tags, written)


def _of_patroni(
    draft: _Draft, config: dict[str, Any], tags: dict[str, dict[str, Any]], written: dict[str, Written]
) -> Declared:
    """Facts of a Patroni cluster with members of these tags. One without tags leads: what bars the others is sought."""
    first, *others = sorted(tags, key=lambda name: bool(tags[name]))
    roster = [PatroniMember(first, "leader", "running", tags=tags[first])]
    roster += [PatroniMember(name, "replica", "streaming", tags=tags[name]) for name in others]
    patroni = PatroniFacts(config, tuple(roster), is_on(config, "pause"))
    names = ""
    if patroni.synchronous != "off" and others:
        kind = QuorumKind.ANY if patroni.synchronous == "quorum" else QuorumKind.FIRST
        names = Quorum(kind, min(max(1, synchronous_node_count(config)), len(others)), tuple(others)).text
    members = []
    own = next((written[name] for name in tags if name in written), {})
    for name in (first, *others):
        # A member whose file is not given is as the one whose file is: they are not known to differ.
        its = written[""] | written.get(name, own)
        settings = facts_of(its, TABLE["patroni"], draft.places, draft.absent)
        if "patroni" not in draft.absent:
            settings = _with_names(settings, names or (settings[_NAMES].value if _NAMES in settings else ""))
        shown = "" if name in _UNKNOWN else name
        members.append(_server(shown, settings, others if name == first else None))
    return draft.declared(members, patroni=patroni)


def _plain(path: Path | None, conf: Document) -> Declared:
    """A server without a manager: what it sets holds for the leader that it is and the standby that it may become.

    Since PostgreSQL 12 standby.signal alone makes it a standby: primary_conninfo may stand anywhere.
    """
    draft = _Draft(conf.start.file, conf.start, _NO_MEMBERS | _NO_PATRONI | _NO_CNPG)
    settings = facts_of(_written(conf), {}, draft.places, draft.absent)
    if _LEVEL in settings:
        settings = {_NAMES: SettingFact(_NAMES, "")} | settings
    named = read_standby_names(settings[_NAMES].value) if _NAMES in settings else None
    leader = _server("", settings, (name for name in (named.names if named else ()) if name != "*"))
    standby = path is not None and path.with_name("standby.signal").exists()
    return draft.declared((*[leader] * (not standby), _server("", settings)))
