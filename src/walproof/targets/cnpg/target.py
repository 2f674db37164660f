"""A CloudNativePG cluster by its namespace and name: everything else is asked of Kubernetes, anew as pods change."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial

import psycopg

from walproof.errors import Error, all_undone
from walproof.guarding.kubernetes_freeze import Policy
from walproof.guarding.status_and_metrics import Log
from walproof.machine.quoting import pasted
from walproof.machine.signals import shielded
from walproof.model.cnpg_facts import CNPG_MANAGER
from walproof.model.drill import Capability
from walproof.model.load import LoadRunner
from walproof.model.ports import SILENT, Capabilities, Configuration, Notebook, Reverting
from walproof.model.topology import ClusterView, Description, Role
from walproof.targets.cnpg.client import Client
from walproof.targets.cnpg.configuration import CnpgConfiguration
from walproof.targets.cnpg.created_objects import ROLES, Left, left_behind, refuse_beside, swept
from walproof.targets.cnpg.creating_load_pods import LoadPods
from walproof.targets.cnpg.credentials_and_own_role import ROLE, Credential, OwnRole
from walproof.targets.cnpg.faults_and_undo import (
    HAPPENS,
    NEED_OPERATOR,
    NO_TAKEOVER,
    NOT_HERE,
    CnpgLogs,
    CnpgRecovery,
    CnpgSwitchover,
    Instances,
)
from walproof.targets.cnpg.faults_and_undo_by_chaos_mesh import ChaosMesh
from walproof.targets.cnpg.guard import FrozenPrimaryGuard, Network
from walproof.targets.cnpg.kubeconfig import connection
from walproof.targets.cnpg.kubernetes_api import CLUSTERS, LEASES, ApiError, KubernetesApi
from walproof.targets.cnpg.member_states_and_failover_steps import CnpgFailoverSteps, CnpgMemberStates
from walproof.targets.cnpg.members import CnpgAccess, CnpgInspector
from walproof.targets.cnpg.objects import Cluster, Lease, read
from walproof.targets.cnpg.pitfalls import AlterSystem, CnpgPitfalls
from walproof.targets.cnpg.rbac import CHAOS_FAULTS, Names, for_load, for_own_role, for_scaling, refusal, refused_faults
from walproof.targets.cnpg.scaling import CnpgScaling, why_not_scaled
from walproof.targets.cnpg.state_and_doctor_facts import facts_of, joined, paused
from walproof.targets.cnpg.target_file import CnpgFile, read_address, shown
from walproof.targets.configure import needed, noted
from walproof.targets.external.cluster import ExternalCluster
from walproof.targets.sql.connection import connected, enters

_ABLE = (
    "SELECT rolsuper OR (rolcreatedb AND pg_has_role(current_user, 'pg_monitor', 'USAGE')) AS able"
    " FROM pg_roles WHERE rolname = current_user"
)
_AMCHECK = (
    "CREATE EXTENSION IF NOT EXISTS amcheck SCHEMA public; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO PUBLIC"
)
"""To PUBLIC: nothing then holds the role that is dropped at the end, and the database is walproof's own."""
_SIZES = frozenset((Capability.LIMIT_PROCESSORS, Capability.LIMIT_MEMORY))
_GONE = "SELECT NOT EXISTS (SELECT FROM pg_roles WHERE rolname = %s) AS gone"


class CnpgCluster(ExternalCluster):
    """An external cluster whose members are pods."""

    manager = CNPG_MANAGER

    def __init__(self, name: str, file: CnpgFile, api: KubernetesApi) -> None:
        self.access = CnpgAccess(api, file)
        super().__init__(name, file, self.access.login, self.access.members)
        self._own_user = ""
        self._no_amcheck = ""
        self._left: Credential | None = None
        self._instances = Instances(*self._cluster, name, self.clock, lambda: self.journal)
        self._chaos = ChaosMesh(self._instances)
        self._states = CnpgMemberStates(*self._cluster, self._addressed, self.clock, injected=self._chaos.in_effect)

    @property
    def identity(self) -> str:
        """The Cluster's uid: of another one of its name nothing is read or changed."""
        return self.access.uid

    @cached_property
    def configuration(self) -> Configuration:
        return CnpgConfiguration(self.name, self.clock, self._cluster, self.members, self.observe)

    @property
    def _cluster(self) -> tuple[KubernetesApi, str]:
        """Where the Cluster's object is: the API and its name."""
        return self.access.api, self.access.file.name

    @cached_property
    def _own_role(self) -> OwnRole:
        return OwnRole(*self._cluster, self.name, self.clock)

    @cached_property
    def _load_pods(self) -> LoadPods:
        return LoadPods(self.access, self.name, self.clock, lambda: self.journal)

    @cached_property
    def _scaling(self) -> CnpgScaling:
        return CnpgScaling(self.name, self.clock, self._cluster, self.observe, self.access.file.load)

    def _sizes(self) -> CnpgScaling:
        return self._scaling

    def load_runner(self) -> LoadRunner:
        return self._load_pods if self.access.file.load.image else super().load_runner()

    def _load_from_outside(self) -> bool:
        """Whether load comes from a machine of the kubeconfig's user, not from a pod."""
        return not self.access.file.load.image and bool(self.access.api.context)

    def describe(self) -> Description:
        """As every external cluster's, and where the load comes from."""
        description = super().describe()
        facts = self._load_pods.facts() if self.access.file.load.image else {}
        if self._load_from_outside():
            way = "port-forward" if self.access.addresses.forwarded else "the pods' addresses"
            facts = {"load": f"from outside the cluster, through {way}"}
        apart = self.access.state.cluster.spec.wal_storage is not None
        return replace(description, facts={**description.facts, **facts}, wal_volume=apart)

    def _manager_facts(self) -> dict[str, str]:
        """What the Cluster says of itself, and how members are reached."""
        cluster = facts_of(self.access.state)
        facts = {"cloudnative-pg phase": cluster.phase, "as declared": cluster.declared, "nodes": cluster.nodes}
        if cluster.synchronous is not None:
            durability = "required" if cluster.synchronous.required else "preferred"
            former = cluster.synchronous.least is not None
            facts["cloudnative-pg synchronous"] = cluster.synchronous.text + ("" if former else f", {durability}")
        if self.access.addresses.forwarded:
            facts["reached through"] = "port-forward: 4 to 8 times slower than from within; load belongs there"
        return facts

    def _inspection(self) -> CnpgInspector:
        return CnpgInspector(self.access, self.name)

    def _switchover(self) -> CnpgSwitchover:
        """The operator switches over itself."""
        return CnpgSwitchover(self._instances, self.observe)

    def observe(self) -> ClusterView:
        """One observation of every instance there is, by its pod's name: SQL and Kubernetes together."""
        return joined(super().observe(), self.access.state, sees_replication=self.access.sees_replication)

    def elected_at(self, since: float) -> float | None:
        """When the leader's lease was taken after `since`, by its holder's clock."""
        try:
            lease = read(Lease, self.access.api.get(LEASES, self.access.file.name))
        except ApiError:
            return None
        taken = lease.spec.acquire_time.timestamp() if lease.spec.acquire_time else 0.0
        return taken if taken > since else None

    # walproof's own role and database

    def open_database(self) -> None:
        """As every external cluster's, by a role of walproof's own where the user may not create one and see enough."""
        if self._made.is_set():
            return
        refuse_beside(*self._cluster)
        try:
            self._take_role()
            super().open_database()
            self._give_amcheck()
        except (Error, KeyboardInterrupt):
            if not self._made.is_set():
                # What cannot be removed now stays in the journal, for `walproof revert`.
                with suppress(Error), shielded():
                    self._remove_role(self.journal)
            raise

    def _give_amcheck(self) -> None:
        """amcheck in walproof's own database, by the superuser inside the leader; each drill says where not."""
        if self.access.login.user != self._own_user:
            return
        command = ["psql", "-X", "-q", "-d", self._database, "-c", _AMCHECK]
        try:
            done = self.access.api.exec(self._instances.check(self.leader()).metadata.name, command)
        except Error as wrong:
            self._no_amcheck = f"{wrong.message}; {wrong.hint}"
        else:
            self._no_amcheck = done.errors.strip() if done.code else ""

    def granting_amcheck(self, user: str) -> str:
        """For walproof's own role: why the superuser inside the leader's pod could not give it."""
        return (user == self._own_user and self._no_amcheck) or super().granting_amcheck(user)

    def as_administrator(self, member: str, statement: str) -> str:
        """In the instance's container, where the superuser needs no password."""
        pod = pasted("{pod:shell} --namespace {space:shell}", pod=member, space=self.access.file.namespace)
        line = "kubectl exec {pod:composed} --container postgres -- psql --command {sql:shell}"
        return pasted(line, pod=pod, sql=statement)

    def _take_role(self) -> None:
        able, version = self._may()
        if self._refused_load is not None:
            raise self._refused_load
        if not able:
            with shielded():
                made = self._own_role.make(needed(self.journal), version, self._usable)
                self._own_user = made.user
                self._log_in_as(made)

    @cached_property
    def _refused_load(self) -> ApiError | None:
        """The right that this user lacks for any load: for its pods, or for a role of walproof's own."""
        needs = [(for_load, "load from within")] if self.access.file.load.image else []
        with suppress(Error, psycopg.Error):
            needs += [] if self._may()[0] else [(for_own_role, "a role of walproof's own")]
        wrong = (refusal(self.access.api, rules(self._named), doing) for rules, doing in needs)
        return next((one for one in wrong if one is not None), None)

    def _may(self) -> tuple[bool, int]:
        """(whether the user may create databases and see replication, PostgreSQL's major version)."""
        with connected(self.admin(self.leader())) as asked:
            row = asked.execute(_ABLE).fetchone()
            return bool(row and row["able"]), asked.info.server_version // 10000

    def _log_in_as(self, credential: Credential) -> None:
        self.access.log_in_as(credential)
        self._parameters = self.access.login

    def _usable(self, credential: Credential) -> bool:
        """Whether the role can log in on every instance that answers, standbys that have replayed it included."""
        login = self.access.parameters(credential)
        answering = {member.name for member in self.observe().members if member.role is not Role.UNKNOWN}
        places = [e.hosts for name, e in self.access.members().items() if name in answering]
        return bool(places) and all(enters(login.at(*hosts)) for hosts in places)

    def _remove_database(self) -> None:
        with suppress(Error):
            self._load_pods.close()
        super()._remove_database()
        if noted(self.journal, self.name, "database"):
            # What the role owns is still there: `walproof revert` removes both.
            return
        with suppress(Error):
            self._remove_role(self.journal)

    def _remove_role(self, journal: Notebook, reverting: Reverting = SILENT) -> None:
        if noted(journal, self.name, ROLE):
            self._log_in_as(self.access.default())
            self._own_role.remove(journal, self._gone, reverting)

    def _gone(self, role: str) -> bool:
        try:
            with connected(self.admin(self.leader())) as asked:
                row = asked.execute(_GONE, (role,)).fetchone()
        except (Error, psycopg.Error):
            return False
        return bool(row and row["gone"])

    def revert(self, journal: Notebook, reverting: Reverting = SILENT) -> list[str]:
        """Undo every pending fault and change, remove walproof's own database and role; sentences about what stays.

        What cannot be undone, as a fault of a member whose node is away, is the error after all the rest is reverted.
        """
        parts = (self._load_pods.remove, self._revert_cluster)
        return all_undone(partial(part, journal, reverting) for part in parts)

    def _revert_cluster(self, journal: Notebook, reverting: Reverting) -> list[str]:
        self._instances.target = self.name
        unread: set[str] = set()
        behind = left_behind(*self._cluster, unread)
        if unread:
            reverting.warn(
                f"this user may not read {', '.join(sorted(unread))}: what is left of these was not looked for"
            )
        roles = {change.name for change in noted(journal, self.name, ROLE)}
        told = {one.maker for one in behind if one.meta.name in roles}
        alter_system = AlterSystem(self._instances)
        faults = [self._chaos.undo_left, alter_system.undo_left, self._instances.undo_left, self._scaling.undo]
        parts = [partial(undo, journal, reverting) for undo in faults]
        # A walproof that was killed may have frozen a member, and its journal is not this one: it may be lost.
        lost = any(one.over(reverting) for one in behind if one.maker not in told)
        thaws = [partial(self._instances.thaw_all, reverting)] if lost else []
        return all_undone([*parts, *thaws, partial(self._revert_own, journal, reverting, behind)])

    def _revert_own(self, journal: Notebook, reverting: Reverting, behind: Sequence[Left]) -> list[str]:
        if self._own_role.adopt(journal, reverting) and all(one.over(reverting) for one in behind if one.kind is ROLES):
            for change in noted(journal, self.name, ROLE):
                # Its databases too, which it alone owns: their names were in the journal that is lost.
                journal.note(self.clock.now(), self.name, "database", change.name, before=None, after=None)
        self._left = self._own_role.left(journal)
        self._enters_as_owner()
        left = super().revert(journal, reverting)
        if not noted(journal, self.name, "database"):
            self._remove_role(journal, reverting)
        return [*left, *swept(*self._cluster, reverting)]

    def _is_led(self) -> bool:
        """As Kubernetes says now: the state that was read before may be from before a failover."""
        status = read(Cluster, self.access.api.get(CLUSTERS, self.access.file.name)).status
        leader = self.observe().leader
        return leader is not None and {status.current_primary, status.target_primary} <= {"", leader}

    def _enters_as_owner(self) -> bool:
        """As the role that a killed run left, where it left one."""
        if self._left is None:
            return True
        if usable := self._usable(self._left):
            self._log_in_as(self._left)
        return usable

    def close(self) -> None:
        """Remove the load pods, walproof's own database and role, and take no more connections for members."""
        super().close()
        with suppress(Error), shielded():
            self._load_pods.close()
        self.access.addresses.close()

    def guard(self, policy: Policy, log: Log) -> FrozenPrimaryGuard:
        """Open a guard of a frozen primary; the write service is the target file's route rw, where it names one."""
        route, (host, port) = self.access.file.routes.get("rw"), self.access.write_service()
        # Not relative: a Service of the guard's own namespace could be named like it.
        service = route.host if route else (f"{host}.svc", port)
        ways = partial(Network, self.access.login.at, service)
        return FrozenPrimaryGuard(self._cluster, ways, self.clock, policy, log)

    def capabilities(self) -> Capabilities:
        """What Chaos Mesh does where it is installed, else the target file's commands, else Kubernetes alone."""
        able, chaos = super().capabilities(), self._chaos
        recovery = CnpgRecovery(self._instances, self.observe, (chaos.undo_all, self._commands.undo_all))
        why = paused(self.access.state.cluster)
        refused = {**self._refused_faults, **(dict.fromkeys(NEED_OPERATOR, why) if why else {})}
        own = {fault: one for fault, one in self._instances.faults().items() if fault not in refused}
        unscaled = self._refused_scaling or why_not_scaled(self.access.state.cluster)
        faults = {**own, **able.faults, **chaos.faults()}
        reasons = {**able.reasons, **NOT_HERE, **refused, **self._without_chaos(able.reasons)}
        if (wrong := self._refused_load) is not None:
            reasons |= dict.fromkeys(
                (Capability.PRICE, Capability.LEDGER, Capability.WORKLOAD), f"{wrong.message}; {wrong.hint}"
            )
        pitfalls = CnpgPitfalls(
            self._instances,
            lambda: recovery,
            lambda place: self.access.login.at(place),  # noqa: PLW0108 (the login changes)
            faults.get(Capability.ISOLATE),
            reasons.get(Capability.ISOLATE, ""),
            # K5 asks the operator's webhook alone, which answers for a Cluster that is not reconciled too.
            {**self._refused_faults, **({Capability.KILL_MEMBER: why} if why else {})},
        )
        switches = Capability.SWITCHOVER not in refused or "switchover" in self.file.faults
        return replace(
            able,
            pricing=None if Capability.PRICE in reasons else able.pricing,
            ledger=None if Capability.LEDGER in reasons else able.ledger,
            workload=None if Capability.WORKLOAD in reasons else able.workload,
            faults=faults,
            switchover=able.switchover if switches else None,
            member_states=self._states,
            failover_steps=CnpgFailoverSteps(*self._cluster, self.clock),
            slow_disk=chaos.slow_disk(),
            partition_one_way=chaos.one_way(),
            recovery=recovery,
            pitfalls=pitfalls.by_number(),
            logs=able.logs if "logs" in self.file.faults else CnpgLogs(self.access.api),
            scenario_factors=frozenset() if unscaled else _SIZES,
            happens={fault: what for fault, what in HAPPENS.items() if fault not in self.file.faults},
            no_takeover={fault: why for fault, why in NO_TAKEOVER.items() if fault not in self.file.faults},
            rolls=self._scaling,
            reasons={**reasons, **(dict.fromkeys(_SIZES, unscaled) if unscaled else {})},
        )

    @cached_property
    def _refused_scaling(self) -> str | None:
        """The right that this user lacks for another size of the pods, in one clause."""
        wrong = refusal(self.access.api, for_scaling(self._named), "another size of its pods")
        return f"{wrong.message}; {wrong.hint}" if wrong is not None else None

    def _without_chaos(self, reasons: Mapping[Capability, str]) -> dict[Capability, str]:
        """Why a fault that Chaos Mesh could do cannot be done, and that no command of the target file does it."""
        missing = self._chaos.why_not()
        commands = (Capability.PARTITION, Capability.ISOLATE)
        return {
            fault: missing[kind] + (f", and {reasons[fault]}" if fault in commands else "")
            for fault, kind in CHAOS_FAULTS.items()
            if kind in missing and (fault not in commands or fault in reasons)
        }

    @cached_property
    def _refused_faults(self) -> dict[Capability, str]:
        return refused_faults(self.access.api, self._named)

    @property
    def _named(self) -> Names:
        return Names(self.access.file.name, self.access.state.instances)


def open_cnpg(address: str) -> CnpgCluster:
    """The cluster of an address or a target file; UsageError, MachineError or ApiError when there is none."""
    path, file = read_address(address)
    configuration, context = connection(file.context, os.environ)
    # The context that was opened: the current one may be another by then.
    api = Client(configuration, file.namespace, context, lambda: connection(context, os.environ)[0])
    return CnpgCluster(path or shown(file.cluster, context), file, api)
