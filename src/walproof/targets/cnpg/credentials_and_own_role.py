"""Users and passwords from secrets, in memory only; and a database role of walproof's own, managed by the operator.

The role is journaled before and removed after. It may create databases, see replication (pg_monitor), and checkpoint
where PostgreSQL has such a role. Its password is random, in a secret that belongs to the Cluster and goes with it."""

import base64
import binascii
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from walproof.errors import TargetError, WaitTimeout
from walproof.machine.pid_files import this_process
from walproof.model.ports import SILENT, Clock, Notebook, Reverting
from walproof.model.waiting import Wait, longest_s, wait_for
from walproof.targets.cnpg import created_objects
from walproof.targets.cnpg.created_objects import MARK, ROLES, left_behind, managed_roles
from walproof.targets.cnpg.kubernetes_api import CLUSTERS, SECRETS, ApiError, KubernetesApi, Tree, patch_as_read
from walproof.targets.cnpg.objects import Cluster, Secret, read
from walproof.targets.configure import noted


@dataclass(frozen=True, slots=True)
class Credential:
    """A user and its password; neither repr nor an exception shows the password."""

    user: str
    password: str = field(repr=False)


def credential_of(api: KubernetesApi, name: str) -> Credential:
    """The user and password in a secret; TargetError names the secret and the key that is missing, no value."""
    secret = read(Secret, api.get(SECRETS, name))
    return Credential(_value(secret, "username"), _value(secret, "password"))


def _value(secret: Secret, key: str) -> str:
    try:
        return base64.b64decode(secret.data[key], validate=True).decode()
    except (KeyError, binascii.Error, UnicodeDecodeError):
        raise TargetError(
            f"the secret {secret.metadata.name} has no {key} that can be read",
            'a secret of type kubernetes.io/basic-auth is needed: secret = "…" in the target file names another',
        ) from None


ROLE = "cnpg role"
"""What the journal calls it; its name is the role's, `after` the secret's."""
_CHECKPOINT_SINCE = 15
_CONFLICTS = 8
_STANDS_S = 5.0
"""Reasons may pass: the instance may not read the secret until the operator has patched the instance's Role."""


class OwnRole:
    """Makes and removes the role of one Cluster."""

    def __init__(self, api: KubernetesApi, cluster: str, target: str, clock: Clock) -> None:
        """`target` is what the journal calls the cluster."""
        self._api, self._cluster, self._target, self._clock = api, cluster, target, clock

    def make(self, journal: Notebook, version: int, usable: Callable[[Credential], bool]) -> Credential:
        """Ask the operator for it and wait until `usable`; TargetError with the operator's reason when it refuses.

        version: PostgreSQL's major one.
        """
        role, secret = f"walproof_{secrets.token_hex(4)}", created_objects.role_name(self._cluster)
        credential = Credential(role, secrets.token_urlsafe(24))
        tree = self._api.get(CLUSTERS, self._cluster)
        journal.note(self._clock.now(), self._target, ROLE, role, before=None, after=secret)
        created_objects.create(self._api, SECRETS, _secret(secret, credential, tree))
        self._list(role, _entry(role, secret, version))
        self._await(role, "make", lambda: usable(credential))
        return credential

    def _await(self, role: str, what: str, done: Callable[[], bool]) -> None:
        """Wait until `done`; TargetError with the operator's reasons that stand for 5 s, or at the end."""
        passing = started = self._clock.now()
        longest = longest_s(Wait.SETTING_IN_EFFECT, self._clock)

        def settled() -> bool:
            nonlocal passing
            if done():
                return True
            status = read(Cluster, self._api.get(CLUSTERS, self._cluster)).status.managed_roles_status
            reasons, now = status.cannot_reconcile.get(role), self._clock.now()
            if not reasons:
                passing = now
            elif now - passing >= _STANDS_S or now - started > longest:
                said = "; ".join(reasons)
                raise TargetError(f"CloudNativePG cannot {what} the role {role}: {said}", "kubectl cnpg status")
            return False

        wait_for(Wait.SETTING_IN_EFFECT, settled, self._clock, pace_s=0.2)

    def adopt(self, journal: Notebook, reverting: Reverting = SILENT) -> bool:
        """Note roles whose maker has ended and whose journal is lost; whether there was one."""
        known = {change.name for change in noted(journal, self._target, ROLE)}
        roles = [one for one in left_behind(self._api, self._cluster) if one.kind is ROLES and one.over(reverting)]
        secret, lost = created_objects.role_name(self._cluster), {role.meta.name for role in roles} - known
        for name in lost:
            journal.note(self._clock.now(), self._target, ROLE, name, before=None, after=secret)
        return bool(lost)

    def left(self, journal: Notebook) -> Credential | None:
        """The role that a killed run left, so that what it owns can be dropped; None where there is none."""
        for change in noted(journal, self._target, ROLE):
            if created_objects.find(self._api, SECRETS, str(change.after)) is not None:
                credential = credential_of(self._api, str(change.after))
                if credential.user == change.name:
                    return credential
        return None

    def remove(self, journal: Notebook, gone: Callable[[str], bool], reverting: Reverting = SILENT) -> None:
        """Have every role of the journal dropped, wait until `gone` says so, and remove what named it. Safe twice."""
        for change in noted(journal, self._target, ROLE):
            if self._drop(change.name, gone):
                reverting.tell("role", change.name)
            self._forget(change.name)
            created_objects.remove(self._api, SECRETS, str(change.after), change.name, reverting)
            journal.undone(change)

    def _drop(self, role: str, gone: Callable[[str], bool]) -> bool:
        """Whether there was one. CloudNativePG drops what spec.managed.roles calls absent, not what is missing there.

        A manifest that has the list, applied anew, takes out our entry alone: the role stays in PostgreSQL.
        """
        roles = managed_roles(self._api.get(CLUSTERS, self._cluster))
        there = next((entry for entry in roles if entry.get("name") == role), None)
        if there is None and gone(role):
            return False
        if there is not None and there.get("ensure") != "absent":
            # One that the operator is about to make would be made after its entry is gone.
            with suppress(WaitTimeout):
                wait_for(Wait.ROLE_MADE, lambda: not gone(role), self._clock, pace_s=0.2)
        comment = f"{MARK}: {this_process()}" if there is None else there.get("comment", "")
        self._list(role, {"name": role, "comment": comment, "ensure": "absent"})
        self._await(role, "drop", lambda: gone(role))
        self._list(role)
        return True

    def _forget(self, role: str) -> None:
        """Take the role out of the Cluster's status, where this user may: CloudNativePG never does.

        Its synchronizeRoles adds to passwordStatus and takes nothing away, for a role that is absent neither, and no
        reconciliation follows the removal of the last role (internal/management/controller/roles, 1.24 to 1.30).
        One that was under way may write it once more: it is looked for again.
        """

        def cleared(tree: Tree) -> Tree | None:
            status = read(Cluster, tree).status.managed_roles_status
            listed = {state: names for state, names in status.by_status.items() if role in names}
            names = {state: [name for name in names if name != role] for state, names in listed.items()}
            if role not in status.password_status and not names:
                return None
            left = {"byStatus": {s: left or None for s, left in names.items()}, "passwordStatus": {role: None}}
            return {"status": {"managedRolesStatus": left}}

        for _ in range(_CONFLICTS):
            try:
                if not patch_as_read(self._api, CLUSTERS, self._cluster, cleared, self._clock, "status"):
                    return
            except ApiError as wrong:
                if wrong.code != 403:
                    raise
                return
            self._clock.pause(0.2)

    def _list(self, role: str, *entry: dict[str, Any]) -> None:
        """Have that entry of the role in the list, or none, beside others: a merge patch replaces it as a whole."""

        def managed(tree: Tree) -> Tree:
            roles = [*(other for other in managed_roles(tree) if other.get("name") != role), *entry]
            others = {k: v for k, v in (tree["spec"].get("managed") or {}).items() if k != "roles"}
            return {"spec": {"managed": {"roles": roles or None} if roles or others else None}}

        patch_as_read(self._api, CLUSTERS, self._cluster, managed, self._clock)


def _entry(role: str, secret: str, version: int) -> dict[str, Any]:
    return {
        "name": role,
        "comment": f"{MARK}: {this_process()}",
        "ensure": "present",
        "login": True,
        "createdb": True,
        "inRoles": ["pg_monitor", *(["pg_checkpoint"] if version >= _CHECKPOINT_SINCE else [])],
        "passwordSecret": {"name": secret},
    }


def _secret(name: str, credential: Credential, cluster: Tree) -> Tree:
    labels = {
        "cnpg.io/reload": "true",
        "cnpg.io/cluster": cluster["metadata"]["name"],
        created_objects.RUN: credential.user,
    }
    words = {"username": credential.user, "password": credential.password}
    return created_objects.secret(created_objects.metadata(name, cluster, labels), "kubernetes.io/basic-auth", words)
