"""Clusters as a group of texts declares them: the facts that live targets gather, and what no file says of them.

Each operator's resource is a cluster, and so is each scope of Patroni and, without Patroni, each postgresql.conf;
HAProxy and PgBouncer belong to the first cluster of their group, and are one of their own where there is no other."""

from collections.abc import Iterable, Iterator, Mapping
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
from walproof.targets.files.pieces import ODD, PatroniPart, Pieces, pieces_of
from walproof.targets.files.settings import TABLE, Written, facts_of
from walproof.targets.files.sources import gathered
from walproof.targets.files.trees import IS_TEMPLATE, TEMPLATE, Tree

_FOLLOWS = "it is a standby cluster: check the files of the cluster that it follows"
_NAMES, _LEVEL = "synchronous_standby_names", "synchronous_commit"
_MANAGED = {_LEVEL: SettingFact(_LEVEL, "on"), _NAMES: SettingFact(_NAMES, "")}
"""What a manager sets where no file does."""
_UNKNOWN = ("standby1", "standby2")


def _nowhere(*parts: str) -> dict[str, str]:
    """These parts of the facts, each with the reason for its absence."""
    return {part: TABLE["absent"][part] for part in parts}


@dataclass(slots=True)
class _Draft:
    """What is being put together of one cluster."""

    name: str
    start: Place
    absent: dict[str, str]
    defaults: Mapping[str, str] = field(default_factory=dict)
    places: Places = field(default_factory=Places)

    def keys(self, tree: Tree, member: str = "") -> None:
        for path, inner in tree.trees():
            for name, place in inner.at.items():
                self.places.add((*path, name), place, member)

    def settings(self, written: Written, managed: Mapping[str, SettingFact], names: str = "") -> dict[str, SettingFact]:
        """Of a server, over what its manager sets; `names`: those that it writes."""
        facts = {**managed, **facts_of(written, self.defaults, self.places, self.absent)}
        return facts | ({_NAMES: SettingFact(_NAMES, names)} if names else {})

    def declared(
        self, servers: Iterable[tuple[str, dict[str, SettingFact]]], streaming: Iterable[str] | None, **parts: Any
    ) -> Declared:
        """Standbys, or with those that stream from it the first of them the leader, as they will be."""
        members = [
            MemberFacts(name, settings=its, receiver_status="streaming", receiver_name=name, monitor=True)
            for name, its in servers
        ]
        if streaming is not None:
            name, its = members[0].name, members[0].settings
            state = "quorum" if _NAMES in its and read_standby_names(its[_NAMES].value) else "async"
            senders = tuple(Sender(one, sync_state=state, slot=one) for one in streaming)
            members[0] = MemberFacts(name, leader=True, settings=its, senders=senders, monitor=True)
        return Declared(Facts(self.name, tuple(members), **parts), self.start, self.places, self.absent)


def declared_by(files: Iterable[str]) -> tuple[list[Declared], Skipped]:
    """Every cluster that files, folders, globs or - declare, and what of them could not be read, each with why."""
    groups = gathered(files)
    pieces = [pieces_of(group) for group in groups]
    return [one for its in pieces for one in _clusters(its)], groups[0].skipped


def _clusters(pieces: Pieces) -> list[Declared]:
    made = list(_resources(pieces))
    named = list(dict.fromkeys(part.scope for part in pieces.patroni if part.scope))
    for scope in named or [""] * bool(pieces.patroni):
        # Parts without a scope belong to the first one.
        made += _patroni(pieces, scope, [p for p in pieces.patroni if (p.scope or (named or [""])[0]) == scope])
    made += [_plain(path, conf) for path, conf in pieces.confs if path not in pieces.group.included]
    if pieces.access_start is None:
        return made
    if not made:
        absent = _nowhere("settings", "patroni", "tags", "cnpg", "members")
        made = [Declared(Facts("clients' way", ()), pieces.access_start, absent=absent)]
    pools = (*made[0].facts.access.pools, *pieces.pools)
    path = AccessPath(tuple(pieces.proxies), pools, tuple(pieces.clients))
    made[0].places.update(pieces.access_places | made[0].places)
    return [replace(made[0], facts=replace(made[0].facts, access=path)), *made[1:]]


def _resources(pieces: Pieces) -> Iterator[Declared]:
    clusters = {_name(tree) for kind, tree in pieces.resources if kind == "cnpg"}
    for kind, tree in pieces.resources:
        try:
            if kind == "cnpg":
                yield _cnpg(tree, pieces.resources)
            elif kind == "pooler" and tree.below("spec", "cluster").get("name") not in clusters:
                absent = _nowhere("patroni", "tags", "cnpg", "members") | {"settings": TABLE["absent"]["pooled"]}
                draft = _Draft(f"Pooler {_name(tree)}", tree.start, absent)
                yield draft.declared((), None, access=AccessPath(pools=(_pool(draft, tree),)))
            elif kind in ("zalando", "crunchy"):
                yield _operator(kind, tree)
        except (Error, TypeError, ValueError, AttributeError, LookupError) as wrong:
            why = wrong.message if isinstance(wrong, Error) else str(wrong) if type(wrong) is ValueError else ODD
            pieces.group.skipped[tree.start] = IS_TEMPLATE if TEMPLATE.search(str(tree)) else why


def _name(tree: Tree) -> str:
    return str(tree.below("metadata").get("name"))


def _pool(draft: _Draft, pooler: Tree) -> Pool:
    draft.keys(pooler, _name(pooler))
    its = pooler.below("spec", "pgbouncer")
    settings = {key: str(value) for key, value in its.below("parameters").items()}
    instances = int(pooler.below("spec").get("instances", 1))
    return Pool(_name(pooler), {}, settings, instances, paused=its.get("paused") is True)


def _written(parameters: Tree) -> Written:
    """PostgreSQL's settings as they stand there."""
    words = {True: "on", False: "off", None: ""}
    return {
        name.lower(): (
            words[value] if value is None or value is True or value is False else str(value),
            parameters.at[name],
        )
        for name, value in parameters.items()
        if not isinstance(value, dict | list)
    }


def _cnpg(cluster: Tree, resources: list[tuple[str, Tree]]) -> Declared:
    tree = _without_nulls(cluster)
    tree["metadata"].setdefault("namespace", "default")
    if written := _written(cluster.below("spec", "postgresql", "parameters")):
        tree["spec"]["postgresql"]["parameters"] = {name: text for name, (text, _) in written.items()}
    facts = cnpg_facts(State(read(Cluster, tree), {}))
    draft = _Draft(f"CloudNativePG {facts.name}", cluster.start, _nowhere("patroni", "tags"), TABLE["cnpg"])
    draft.keys(cluster)
    facts = replace(facts, services_of_all=tuple(_services_of_all(draft, facts.name, resources)))
    poolers = (one for kind, one in resources if kind == "pooler")
    pools = [_pool(draft, one) for one in poolers if one.below("spec", "cluster").get("name") == facts.name]
    first, *others = [f"{facts.name}-{number}" for number in range(1, max(1, facts.instances) + 1)]
    sync, names = facts.synchronous, ""
    if sync is not None:
        named = (*sync.ahead, *others[: sync.named_instances], *sync.behind)
        kind = QuorumKind.FIRST if sync.method == "first" else QuorumKind.ANY
        number = sync.number if sync.required else min(sync.number, len(named))
        names = Quorum(kind, number, named).text if named and number else ""
    settings = draft.settings(written, _MANAGED) | {_NAMES: SettingFact(_NAMES, names)}
    if facts.replica:
        draft.absent["settings"] = "a replica cluster takes no commits of its own"
    streaming = None if facts.replica else (*others, *(sync.elsewhere if sync else ()))
    servers = ((name, settings) for name in (first, *others))
    return draft.declared(servers, streaming, cnpg=facts, access=AccessPath(pools=tuple(pools)))


def _services_of_all(draft: _Draft, cluster: str, resources: list[tuple[str, Tree]]) -> Iterator[str]:
    """Services whose selector names the Cluster and no role; the operator's own poolers have a name of their own."""
    for kind, one in resources:
        selector, name = one.below("spec", "selector"), _name(one)
        roles = {"cnpg.io/instanceRole", "role", "cnpg.io/instanceName", "cnpg.io/poolerName"}
        if kind == "service" and selector.get("cnpg.io/cluster") == cluster and not roles & selector.keys():
            draft.places.add(("selector",), selector.start, name)
            if not reads_by_name(name):
                yield name


def _without_nulls(tree: Any) -> Any:
    """As Kubernetes takes it: a key of no value is not there."""
    if isinstance(tree, dict):
        return {key: _without_nulls(value) for key, value in tree.items() if value is not None}
    return [_without_nulls(one) for one in tree] if isinstance(tree, list) else tree


def _operator(kind: str, resource: Tree) -> Declared:
    """A resource of Zalando's or Crunchy's operator, which make Patroni's configuration of it."""
    keys, spec, name = TABLE[kind], resource.below("spec"), _name(resource)
    patroni, standby, pooler = spec.below("patroni"), spec.below("standby"), spec.below(*keys["pooler"])
    config, count = dict(spec.below(*keys["patroni"])), spec.get("numberOfInstances", 1)
    if kind == "crunchy":
        config |= {
            "ttl": patroni.get("leaderLeaseDurationSeconds", 30),
            "loop_wait": patroni.get("syncPeriodSeconds", 10),
        }
        count = sum(int(one.get("replicas", 1)) for one in spec.get("instances") or [{}])
    if standby.get("enabled", kind == "zalando" and bool(standby)):
        raise UsageError(_FOLLOWS)
    patroni.without_placeholders()
    section = config.get("postgresql")
    config["postgresql"] = {"use_pg_rewind": True} | (section if isinstance(section, dict) else {})
    draft = _Draft(f"{kind.capitalize()} {name}", resource.start, _nowhere("cnpg"), TABLE["patroni"])
    draft.keys(resource)
    pools, *above, last = [], "spec", *keys["pooler"]
    if last in resource.below(*above) or (kind == "zalando" and spec.get("enableConnectionPooler") is True):
        key = ("spec", *keys["pooler"], keys["count"])
        pools.append(Pool(f"{name}'s pooler", instances=int(pooler.get(key[-1], keys["poolers"])), key=".".join(key)))
        draft.places.add(key, pooler.start)
    tags: dict[str, dict[str, Any]] = {f"{name}-{number}": {} for number in range(int(count))}
    made = _of_patroni(draft, config, tags, {"": _written(spec.below(*keys["parameters"]))})
    return replace(made, facts=replace(made.facts, access=AccessPath(pools=tuple(pools))))


def _patroni(pieces: Pieces, scope: str, parts: list[PatroniPart]) -> Iterator[Declared]:
    """The parts of one scope: the first dynamic configuration among them, and each member's own part."""
    source = next((part.dcs for part in parts if part.dcs is not None), None)
    dcs = Tree(parts[0].tree.start) if source is None else source
    draft, config = (
        _Draft(f"Patroni {scope}".strip(), dcs.start, _nowhere("cnpg"), TABLE["patroni"]),
        dict[str, Any](dcs),
    )
    if is_standby_cluster(config):
        pieces.group.skipped[dcs.start] = _FOLLOWS
        return
    if source is None:
        draft.absent["patroni"] = "no file holds bootstrap.dcs: the dynamic configuration is in the DCS alone"
    draft.keys(dcs)
    tags: dict[str, dict[str, Any]] = {}
    written = {"": _written(dcs.below("postgresql", "parameters"))}
    for part in (part for part in parts if part.local):
        member, own = part.name or part.tree.start.file, part.tree.below("postgresql")
        draft.keys(part.tree, member)
        tags[member] = dict(part.tree.below("tags"))
        # What must be the same everywhere Patroni takes of the dynamic configuration alone (CMDLINE_OPTIONS).
        its = _written(own.below("parameters"))
        written[member] = {name: value for name, value in its.items() if name not in TABLE["patroni"]}
        if source is not None and not refused(config):
            section = {key: value for key, value in own.items() if key != "parameters"}
            config["postgresql"] = (config.get("postgresql") or {}) | section
    servers = max((proxy.servers for proxy in pieces.proxies), key=len, default=())
    missing = [server for server in servers if server not in tags]
    tags |= {server: {} for server in missing[: max(0, len(servers) - len(tags))]}
    if len(tags) < 2:
        draft.absent |= _nowhere("members")
        tags |= {name: {} for name in _UNKNOWN}
    yield _of_patroni(draft, config, tags, written)


def _of_patroni(
    draft: _Draft, config: dict[str, Any], tags: dict[str, dict[str, Any]], written: dict[str, Written]
) -> Declared:
    """Facts of a Patroni cluster with members of these tags. One without tags leads: what bars the others is sought."""
    first, *others = sorted(tags, key=lambda name: bool(tags[name]))
    roster = [PatroniMember(first, "leader", "running", tags=tags[first])]
    roster += [PatroniMember(name, "replica", "streaming", tags=tags[name]) for name in others]
    patroni = PatroniFacts(config, tuple(roster), is_on(config, "pause"))
    names, known = "", "patroni" not in draft.absent
    if patroni.synchronous != "off" and others:
        kind = QuorumKind.ANY if patroni.synchronous == "quorum" else QuorumKind.FIRST
        names = Quorum(kind, min(max(1, synchronous_node_count(config)), len(others)), tuple(others)).text
    # A member whose file is not given is as the one whose file is: they are not known to differ.
    own = next((written[name] for name in tags if name in written), {})
    servers = []
    for name in (first, *others):
        settings = draft.settings(written[""] | written.get(name, own), _MANAGED if known else {}, names * known)
        servers.append(("" if name in _UNKNOWN else name, settings))
    return draft.declared(servers, others, patroni=patroni)


def _plain(path: Path | None, conf: Tree) -> Declared:
    """A server without a manager: what it sets holds for the leader that it is and the standby that it may become.

    Since PostgreSQL 12 standby.signal alone makes it a standby: primary_conninfo may stand anywhere.
    """
    draft = _Draft(conf.start.file, conf.start, _nowhere("members", "patroni", "tags", "cnpg"))
    settings = draft.settings(_written(conf), {})
    if _LEVEL in settings:
        settings = {_NAMES: _MANAGED[_NAMES]} | settings
    named = read_standby_names(settings[_NAMES].value) if _NAMES in settings else None
    standby = path is not None and path.with_name("standby.signal").exists()
    streaming = None if standby else [name for name in (named.names if named else ()) if name != "*"]
    return draft.declared([("", settings)] * (1 if standby else 2), streaming)
