"""A Patroni cluster of yours by the REST address of any member: everything else is discovered; settings by REST."""

import json
from typing import Any

from walproof.errors import TargetError, UsageError
from walproof.model.guarantee import QuorumKind, SyncMode, read_standby_names
from walproof.model.topology import Endpoint
from walproof.model.waiting import Wait, wait_for
from walproof.targets.external.cluster import OwnCluster
from walproof.targets.external.faults import BrokenByCommand
from walproof.targets.external.target_file import TargetFile
from walproof.targets.patroni.config import flat, merged, undoing
from walproof.targets.patroni.rest import LEADER_ROLES, PatroniRest, RestAccess
from walproof.targets.sql.alter_system import CONFIG, Difference, Notebook, connected
from walproof.targets.sql.connection import Ways, resolved
from walproof.targets.sql.values import same_value

Tree = dict[str, Any]


class PatroniTarget(OwnCluster, BrokenByCommand):
    """A cluster that Patroni manages. Faults: Patroni's own restart and switchover, and your commands."""

    manager = "patroni"

    def __init__(
        self, name: str, file: TargetFile, ways: Ways, members: dict[str, Endpoint], rest: PatroniRest
    ) -> None:
        super().__init__(name, file, ways, members)
        self.rest = rest
        self.harmed: list[tuple[str, str]] = []

    def _facts(self) -> dict[str, str]:
        cluster = self.rest.cluster()
        versions = {
            str(m.get("name")): str(
                (self.rest.status(str(m.get("api_url", ""))).get("patroni") or {}).get("version", "?")
            )
            for m in cluster["members"]
        }
        facts = {"patroni": min(versions.values(), default="?")}
        if len(set(versions.values())) > 1:
            facts["patroni versions"] = ", ".join(f"{n} {v}" for n, v in versions.items())
        if cluster.get("pause"):
            facts["patroni paused"] = "yes: nobody fails over"
        config = self.rest.config()
        facts.update({f"patroni {k}": str(config[k]) for k in ("ttl", "loop_wait", "retry_timeout") if k in config})
        return facts

    @property
    def version(self) -> tuple[int, ...]:
        """Patroni's version on the oldest member."""
        text = self._facts()["patroni"]
        return tuple(int(p) for p in text.split(".") if p.isdigit())

    def by_manager(self) -> frozenset[str]:
        """Restart and switchover are Patroni's, except while it is paused."""
        return frozenset({"restart", "switch-over"})

    # what Patroni does by itself

    def restart(self, member: str) -> None:
        """PostgreSQL restarted by Patroni, or by your command where you gave one."""
        if "restart" in self.file.faults:
            self.command("restart", member)
            return
        self.rest.tell("POST", f"{self._api(member)}/restart", {}, timeout_s=120)

    def switch_over(self, to: str | None = None) -> None:
        """Planned, through Patroni."""
        if "switch-over" in self.file.faults:
            self.command("switch-over", self.leader(), to or "")
            return
        if self.rest.cluster().get("pause") and to is None:
            raise TargetError("Patroni is paused: it switches over only to a member that is named", "patronictl resume")
        leader = self.leader()
        if to is not None:
            wait_for(Wait.QUORUM_NAMED, lambda: self._may_lead(to), self.clock, pace_s=0.3)
        body = {"leader": leader, **({"candidate": to} if to else {})}
        self.rest.tell("POST", f"{self._api(leader)}/switchover", body, timeout_s=120)

        def handed() -> bool:
            now = self.observe().leader
            return now is not None and now != leader

        wait_for(Wait.SWITCHOVER, handed, self.clock)

    def _may_lead(self, member: str) -> bool:
        """Patroni hands over only to a standby that counts, where there are synchronous ones."""
        view = self.observe()
        return not view.standby_names or member in view.synchronous

    def _api(self, member: str) -> str:
        for said in self.rest.cluster()["members"]:
            if said.get("name") == member:
                return str(said["api_url"]).removesuffix("/patroni")
        raise TargetError(f"Patroni knows no member {member!r}", "patronictl list")

    # configuration

    def differences(self, change: Tree) -> tuple[Difference, ...]:
        """What patching the dynamic configuration so would change."""
        now = self.rest.config()
        before, after = flat(now), flat(merged(now, change))
        return tuple(
            Difference("cluster", name, _said(before.get(name)), _said(after.get(name)))
            for name in dict.fromkeys((*before, *after))
            if before.get(name) != after.get(name)
        )

    def patch(self, change: Tree) -> None:
        """Patch the dynamic configuration, journaled before, and wait until it is in effect on every member."""
        before = self.rest.config()
        after = merged(before, change)
        if after == before:
            return
        changed = _changed(before, after)
        note = {"config": before, "shown": {m: self._shown(m, changed) for m in self._members}}
        self._journal().note(
            self.clock.now(), self.name, CONFIG, "config", before=json.dumps(note), after=json.dumps(after)
        )
        self.rest.patch(change)
        self._await(after, {m: {n: None for n in changed} for m in self._members})

    def _shown(self, member: str, names: list[str]) -> dict[str, str]:
        """pg_settings.setting by name; {} when the member does not answer."""
        try:
            with connected(self.admin(member)) as link:
                rows = link.execute(_ROWS, ([n.lower() for n in names],)).fetchall()
        except TargetError:
            return {}
        return {str(r["name"]): str(r["setting"]) for r in rows}

    def _await(self, wanted: Tree, shown: dict[str, dict[str, str | None]]) -> None:
        """In force: Patroni states it, every member's new sessions show it, the quorum counts.

        shown: per member what a parameter that `wanted` does not set was before, None where nobody knows.
        """
        parameters = _parameters(wanted)

        def in_effect() -> bool:
            return self.rest.config() == wanted and all(self._has(m, n, parameters) for m, n in shown.items())

        wait_for(Wait.SETTING_IN_EFFECT, in_effect, self.clock, pace_s=0.3, times=4)
        self._await_sync(wanted)

    def _has(self, member: str, names: dict[str, str | None], parameters: Tree) -> bool:
        try:
            with connected(self.admin(member)) as link:
                rows = {str(r["name"]): r for r in link.execute(_ROWS, ([n.lower() for n in names],)).fetchall()}
        except TargetError:
            return False
        for name, before in names.items():
            row = rows.get(name.lower())
            if row is None:
                raise UsageError(f"PostgreSQL of {member} has no parameter {name}", "leave it out")
            if row["pending_restart"]:
                raise UsageError(f"{name} takes effect only at a restart", "patronictl restart CLUSTER --pending")
            if name in parameters and not same_value(_conf(parameters[name]), row["setting"], row["unit"]):
                return False
            if name not in parameters and before is not None and row["setting"] != before:
                return False
        return True

    def _await_sync(self, wanted: Tree) -> None:
        mode = str(wanted.get("synchronous_mode", "off")).lower()
        count = int(wanted.get("synchronous_node_count") or 1)
        asked = min(count, len(self._members) - 1)
        kind = QuorumKind.ANY if mode == "quorum" else QuorumKind.FIRST
        sync = mode in ("true", "on", "quorum")

        def counts() -> bool:
            view = self.observe()
            if not sync:
                return not view.standby_names
            named = read_standby_names(view.standby_names)
            # The kind and the number too: a smaller quorum is in effect only once the larger one is gone.
            met = named is not None and (named.kind, named.k) == (kind, asked) and len(view.synchronous) >= asked
            return met or not asked

        wait_for(Wait.QUORUM_NAMED, counts, self.clock, pace_s=0.3)

    def set_parameters(self, parameters: dict[str, str | None]) -> None:
        """Parameters of PostgreSQL through Patroni; synchronous_standby_names is Patroni's own."""
        if "synchronous_standby_names" in parameters:
            raise UsageError("Patroni writes synchronous_standby_names itself", "set synchronous_mode instead")
        self.patch({"postgresql": {"parameters": dict(parameters)}})

    def set_quorum(self, kind: QuorumKind, k: int) -> None:
        """ANY is Patroni's quorum mode (4.0 and later), FIRST its synchronous_mode: on."""
        if kind is QuorumKind.ANY and self.version < (4,):
            raise UsageError("this Patroni has no quorum mode (it came with 4.0)", f"--quorum first{k}")
        self.set_sync(SyncMode.QUORUM if kind is QuorumKind.ANY else SyncMode.ON, k)

    def set_sync(self, mode: SyncMode, quorum: int) -> None:
        """Synchronous mode and node count by REST, and wait until the names are in effect."""
        four = self.version >= (4,)
        words: dict[SyncMode, Any] = {
            SyncMode.OFF: "off" if four else False,
            SyncMode.ON: "on" if four else True,
            SyncMode.QUORUM: "quorum",
            SyncMode.STRICT: "on" if four else True,
        }
        strict = mode is SyncMode.STRICT
        change: Tree = {"synchronous_mode": words[mode], "synchronous_mode_strict": strict}
        self.patch({**change, **({} if mode is SyncMode.OFF else {"synchronous_node_count": quorum})})

    def put_back(self, journal: Notebook) -> list[str]:
        """Undo: exactly the earlier configuration where nobody changed it since, else only our own keys."""
        left: list[str] = []
        for change in journal.pending(self.name):
            if change.what != CONFIG:
                continue
            note, after = json.loads(change.before or "{}"), json.loads(change.after or "{}")
            before, now = note["config"], self.rest.config()
            wanted = before
            if now in (before, after):
                # Also where it seems undone: /config may still show what was before the change (see below).
                self.rest.replace(before)
            else:
                patch, foreign = undoing(before, after, now)
                left += [f"cluster: {name} was changed by somebody else since: left alone" for name in foreign]
                wanted = merged(now, patch)
                if patch:
                    self.rest.patch(patch)
            # Never what /config says just after: Patroni answers from a view that may be a loop old.
            self._await(wanted, {} if left else note["shown"])
            journal.undone(change)
        return left


_ROWS = "SELECT name, setting, coalesce(unit, '') AS unit, pending_restart FROM pg_settings WHERE name = ANY(%s)"


def _changed(before: Tree, after: Tree) -> list[str]:
    """Parameters of PostgreSQL that differ."""
    was, then = _parameters(before), _parameters(after)
    return [name for name in dict.fromkeys((*was, *then)) if was.get(name) != then.get(name)]


def _said(value: Any) -> str | None:
    return None if value is None else (value if isinstance(value, str) else json.dumps(value))


def _conf(value: Any) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def _parameters(config: Tree) -> Tree:
    return dict((config.get("postgresql") or {}).get("parameters") or {})


def open_patroni(name: str, file: TargetFile) -> PatroniTarget:
    """Ask any member for /cluster and take every member's address from it; TargetError when nobody answers."""
    part = file.restapi
    rest = PatroniRest(
        RestAccess(
            file.rest,
            part.user,
            part.password.get_secret_value() or _secret(part.password_file),
            part.ca_file,
            part.cert_file,
            part.key_file,
            part.verify,
        )
    )
    cluster = rest.cluster()
    # libpq's own defaults (PGUSER, pgpass, service) hold for everything but the host.
    ways = resolved(file.dsn or "", file.service)
    members = {
        str(m["name"]): ways.endpoint(((str(m["host"]), int(m.get("port", 5432))),))
        for m in cluster["members"]
        if m.get("host")
    }
    if not members:
        raise TargetError("Patroni names no member that has an address", "patronictl list")
    roles = {str(m.get("role")) for m in cluster["members"]}
    if "standby_leader" in roles and not roles & set(LEADER_ROLES):
        raise TargetError("this is a standby cluster: it takes no writes", "name the cluster it replicates from")
    return PatroniTarget(name, file, ways, members, rest)


def _secret(path: str) -> str:
    if not path:
        return ""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except OSError as wrong:
        raise UsageError(
            f"restapi.password_file {path} cannot be read: {wrong.strerror}", "chmod 600, your own"
        ) from None
