"""Clusters as a group of texts declares them: the facts that live targets gather, and what no file says of them.

Each operator's resource is a cluster, and so is each scope of Patroni and, without Patroni, each postgresql.conf;
HAProxy and PgBouncer belong to the first cluster of their group, and are one of their own where there is no other."""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from walproof.model.access_path import AccessPath, Pool, Proxy
from walproof.model.declared import Declared, Place, Skipped
from walproof.model.facts import Facts, MemberFacts, PatroniFacts, PatroniMember, Sender, SettingFact
from walproof.model.guarantee import Quorum, QuorumKind, read_standby_names
from walproof.model.patroni_values import is_on, is_standby_cluster, refused, synchronous_node_count
from walproof.targets.cnpg.objects import Cluster, read
from walproof.targets.cnpg.state_and_doctor_facts import State, pool_of, with_clients_way
from walproof.targets.cnpg.state_and_doctor_facts import facts_of as cnpg_facts
from walproof.targets.files.pieces import PatroniPart, Pieces, pieces_of
from walproof.targets.files.reading import Reading
from walproof.targets.files.settings import TABLE, Written, facts_of
from walproof.targets.files.sources import gathered
from walproof.targets.files.trees import Tree

_FOLLOWS = "it is a standby cluster: check the files of the cluster that it follows"
_NAMES, _LEVEL = "synchronous_standby_names", "synchronous_commit"
_MANAGED = {_LEVEL: SettingFact(_LEVEL, "on"), _NAMES: SettingFact(_NAMES, "")}
"""What a manager sets where no file does."""
_UNKNOWN = ("standby1", "standby2")
_MOST_INSTANCES = 100
Tags = dict[str, dict[str, Any]]
"""Of each member, by its name."""


def _begun(name: str, start: Place, absent: str, **parts: Any) -> Declared:
    """A cluster without members, and why these parts of its facts are in no file."""
    return Declared(Facts(name, (), **parts), start, absent={part: TABLE["absent"][part] for part in absent.split()})


def _keys(declared: Declared, tree: Tree, member: str = "") -> None:
    for path, inner in tree.trees():
        for name, place in inner.at.items():
            declared.places.add((*path, name), place, member)


def _with_members(
    its: Declared, servers: Iterable[tuple[str, dict[str, SettingFact]]], streaming: Iterable[str] | None, **parts: Any
) -> Declared:
    """With standbys of these settings, or with those that stream from it the first of them the leader."""
    members = [
        MemberFacts(name, settings=settings, receiver_status="streaming", receiver_name=name, monitor=True)
        for name, settings in servers
    ]
    if streaming is not None:
        state = "quorum" if members[0].value(_NAMES) else "async"
        senders = tuple(Sender(name, sync_state=state, slot=name) for name in streaming)
        members[0] = replace(members[0], leader=True, senders=senders, receiver_status="", receiver_name="")
    return replace(its, facts=replace(its.facts, members=tuple(members), **parts))


def declared_by(files: Iterable[str], now: Callable[[], float] = time.monotonic) -> tuple[list[Declared], Skipped]:
    """Every cluster that files, folders, globs or - declare, and what of them could not be read, each with why."""
    reading = Reading(now)
    pieces = [pieces_of(group) for group in gathered(files, reading)]
    return [one for its in pieces for one in _clusters(its)], reading.skipped


def _clusters(pieces: Pieces) -> list[Declared]:
    made = [*_managed(pieces)]
    made += [_plain(path, conf) for path, conf in pieces.confs if path not in pieces.group.reading.included]
    if pieces.way_start is None:
        return made
    first, *others = made or [_begun("clients' way", pieces.way_start, "settings patroni tags cnpg members")]
    first.places.update(pieces.way.places | first.places)
    path = replace(pieces.way.path, pools=(*first.facts.access.pools, *pieces.way.pools))
    return [replace(first, facts=replace(first.facts, access=path)), *others]


def _managed(pieces: Pieces) -> Iterator[Declared]:
    """Of operators' resources, and of each scope of Patroni: parts without one belong to the first."""
    clusters = [tree for kind, tree in pieces.resources if kind == "cnpg"]
    for kind, tree in pieces.resources:
        with pieces.group.or_skipped(tree.start, tree):
            pieces.group.reading.check()
            pieces.group.reading.add_clusters(kind in ("cnpg", "zalando", "crunchy"))
            if kind == "cnpg":
                yield _cnpg(tree, pieces.resources)
            elif kind == "pooler":
                name = tree.below("spec", "cluster").get("name")
                if not any(_name(one) == name and _together(one, tree) for one in clusters):
                    yield _pooler(tree)
            elif kind in ("zalando", "crunchy"):
                yield _operator(kind, tree)
    first = next((part.scope for part in pieces.patroni if part.scope), "")
    for scope in dict.fromkeys(part.scope or first for part in pieces.patroni):
        parts = [part for part in pieces.patroni if (part.scope or first) == scope]
        dcs = next((part.dcs for part in parts if part.dcs), Tree(parts[0].tree.start))
        with pieces.group.or_skipped(dcs.start):
            pieces.group.reading.check()
            pieces.group.reading.add_clusters(1)
            yield _patroni(scope, parts, dcs, pieces.way.proxies)


def _pooler(tree: Tree) -> Declared:
    """One whose Cluster is in no file."""
    path = AccessPath(pools=(pool_of(tree),))
    its = _begun(f"Pooler {_name(tree)}", tree.start, "patroni tags cnpg members", access=path)
    _keys(its, tree, _name(tree))
    its.absent["settings"] = TABLE["absent"]["pooled"]
    return its


def _name(tree: Tree) -> str:
    return str(tree.below("metadata").get("name"))


def _together(one: Tree, other: Tree) -> bool:
    """Whether they can be in one namespace: what names none goes where it is applied."""
    return len({str(tree.below("metadata").get("namespace") or "") for tree in (one, other)} - {""}) < 2


def _written(parameters: Tree) -> Written:
    """PostgreSQL's settings as they stand there."""
    words = ((True, "on"), (False, "off"), (None, ""))
    return {
        name.lower(): (next((word for one, word in words if value is one), str(value)), parameters.at[name])
        for name, value in parameters.items()
        if not isinstance(value, dict | list)
    }


def _cnpg(cluster: Tree, resources: list[tuple[str, Tree]]) -> Declared:
    tree = _without_nulls(cluster)
    tree["metadata"].setdefault("namespace", "default")
    if written := _written(cluster.below("spec", "postgresql", "parameters")):
        tree["spec"]["postgresql"]["parameters"] = {name: text for name, (text, _) in written.items()}
    facts = cnpg_facts(State(read(Cluster, tree), {}))
    its = _begun(f"CloudNativePG {facts.name}", cluster.start, "patroni tags")
    _keys(its, cluster)
    beside = [(kind, one) for kind, one in resources if _together(one, cluster)]
    made = {name: [one for kind, one in beside if kind == name] for name in ("service", "pooler")}
    facts, access = with_clients_way(facts, made["service"], made["pooler"])
    for one in (*made["service"], *made["pooler"]):
        if (name := _name(one)) in (*facts.services_of_all, *(pool.name for pool in access.pools)):
            _keys(its, one, name)
    first, *others = _instances(facts.name, facts.instances, 1)
    sync, names = facts.synchronous, ""
    if sync is not None:
        named = (*sync.ahead, *others[: sync.named_instances], *sync.behind)
        kinds = QuorumKind.FIRST if sync.method == "first" else QuorumKind.ANY
        number = sync.number if sync.required else min(sync.number, len(named))
        names = Quorum(kinds, number, named).text if named and number else ""
    settings = _MANAGED | facts_of(written, TABLE["cnpg"], its.places, its.absent) | _names(names)
    if facts.replica:
        its.absent["settings"] = "a replica cluster takes no commits of its own"
    streaming = None if facts.replica else (*others, *(sync.elsewhere if sync else ()))
    return _with_members(its, ((name, settings) for name in (first, *others)), streaming, cnpg=facts, access=access)


def _instances(name: str, count: int, first: int) -> list[str]:
    """The names that an operator gives them; a cluster that is scaled to none is as one of one."""
    if count > _MOST_INSTANCES:
        raise ValueError(f"it asks for over {_MOST_INSTANCES} instances")
    return [f"{name}-{number}" for number in range(first, first + max(1, count))]


def _names(text: str) -> dict[str, SettingFact]:
    return {_NAMES: SettingFact(_NAMES, text)}


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
    config |= {key: patroni.get(its, default) for key, (its, default) in keys["times"].items()}
    if kind == "crunchy":
        count = sum(int(one.get("replicas", 1)) for one in spec.get("instances") or [{}])
    if standby.get("enabled", kind == "zalando" and bool(standby)):
        raise ValueError(_FOLLOWS)
    patroni.without_placeholders()
    section = config.get("postgresql")
    config["postgresql"] = {"use_pg_rewind": True} | (section if isinstance(section, dict) else {})
    its = _begun(f"{kind.capitalize()} {name}", resource.start, "cnpg")
    _keys(its, resource)
    *above, last = keys["pooler"]
    if last in spec.below(*above) or (kind == "zalando" and spec.get("enableConnectionPooler") is True):
        key = ("spec", *keys["pooler"], keys["count"])
        its.places.add(key, pooler.start)
        pool = Pool(f"{name}'s pooler", instances=int(pooler.get(key[-1], keys["poolers"])), key=".".join(key))
        its = replace(its, facts=replace(its.facts, access=AccessPath(pools=(pool,))))
    tags: Tags = {instance: {} for instance in _instances(name, int(count), 0)}
    return _of_patroni(its, config, tags, {"": _written(spec.below(*keys["parameters"]))})


def _patroni(scope: str, parts: list[PatroniPart], dcs: Tree, proxies: list[Proxy]) -> Declared:
    """The dynamic configuration of one scope, and each member's own part."""
    its, config = _begun(f"Patroni {scope}".strip(), dcs.start, "cnpg"), dict[str, Any](dcs)
    if is_standby_cluster(config):
        raise ValueError(_FOLLOWS)
    if not dcs:
        its.absent["patroni"] = "no file holds bootstrap.dcs: the dynamic configuration is in the DCS alone"
    _keys(its, dcs)
    tags: Tags = {}
    written = {"": _written(dcs.below("postgresql", "parameters"))}
    for part in (part for part in parts if part.tree is not part.dcs):
        member, own = part.name or part.tree.start.file, part.tree.below("postgresql")
        _keys(its, part.tree, member)
        tags[member] = dict(part.tree.below("tags"))
        # What must be the same everywhere Patroni takes of the dynamic configuration alone (CMDLINE_OPTIONS).
        of_member = _written(own.below("parameters"))
        written[member] = {name: value for name, value in of_member.items() if name not in TABLE["patroni"]}
        if dcs and not refused(config):
            section = {key: value for key, value in own.items() if key != "parameters"}
            config["postgresql"] = (config.get("postgresql") or {}) | section
    servers = max((proxy.servers for proxy in proxies), key=len, default=())
    missing = [server for server in servers if server not in tags]
    tags |= {server: {} for server in missing[: max(0, len(servers) - len(tags))]}
    if len(tags) < 2 and not servers:
        its.absent["members"] = TABLE["absent"]["members"]
        tags |= {name: {} for name in _UNKNOWN}
    return _of_patroni(its, config, tags, written)


def _of_patroni(its: Declared, config: dict[str, Any], tags: Tags, written: dict[str, Written]) -> Declared:
    """Facts of a Patroni cluster with members of these tags. One without tags leads: what bars the others is sought."""
    first, *others = sorted(tags, key=lambda name: bool(tags[name]))
    roster = [PatroniMember(first, "leader", "running", tags=tags[first])]
    roster += [PatroniMember(name, "replica", "streaming", tags=tags[name]) for name in others]
    patroni, known = PatroniFacts(config, tuple(roster), is_on(config, "pause")), "patroni" not in its.absent
    names, managed = {}, _MANAGED if known else {}
    if patroni.synchronous != "off" and others:
        kind = QuorumKind.ANY if patroni.synchronous == "quorum" else QuorumKind.FIRST
        number = min(max(1, synchronous_node_count(config)), len(others))
        names = _names(Quorum(kind, number, tuple(others)).text)
    # A member whose file is not given is as the one whose file is: they are not known to differ.
    own = next((written[name] for name in tags if name in written), {})
    servers = []
    for name in (first, *others):
        facts = facts_of(written[""] | written.get(name, own), TABLE["patroni"], its.places, its.absent)
        servers.append(("" if name in _UNKNOWN else name, managed | facts | names))
    return _with_members(its, servers, others, patroni=patroni)


def _plain(path: Path | None, conf: Tree) -> Declared:
    """A server without a manager: what it sets holds for the leader that it is and the standby that it may become.

    Since PostgreSQL 12 standby.signal alone makes it a standby: primary_conninfo may stand anywhere.
    """
    its = _begun(conf.start.file, conf.start, "members patroni tags cnpg")
    settings = facts_of(_written(conf), {}, its.places, its.absent)
    settings = (_names("") if _LEVEL in settings else {}) | settings
    if path and os.path.lexists(path.with_name("standby.signal")):
        return _with_members(its, [("", settings)], None)
    named = read_standby_names(settings[_NAMES].value) if _NAMES in settings else None
    streaming = [name for name in named.names if name != "*"] if named else ()
    return _with_members(its, [("", settings)] * 2, streaming)
