"""walproof's own role on CloudNativePG, and what `revert` takes away: journaled, undone, swept."""

import copy
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.kubernetes.port import FakeApi, view
from walproof.errors import TargetError, WaitTimeout
from walproof.machine.pid_files import here, machine
from walproof.model.ports import Reverting
from walproof.records.journal import Journal
from walproof.targets.cnpg import created_objects
from walproof.targets.cnpg.created_objects import MADE_BY, MARK
from walproof.targets.cnpg.credentials_and_own_role import Credential, OwnRole
from walproof.targets.cnpg.faults_and_undo import Instances
from walproof.targets.cnpg.kubernetes_api import CLUSTERS, SECRETS, ApiError
from walproof.targets.cnpg.target import CnpgCluster
from walproof.targets.cnpg.target_file import CnpgFile
from walproof.targets.external.cluster import ExternalCluster
from walproof.targets.simulated.clock import VirtualClock

BOOT = here().partition(" ")[2]

NAME = "cnpg:default/pg"
SECRET = "pg-walproof-role"
THEIRS = {"name": "reporting", "ensure": "present", "login": True, "validUntil": "2030-01-01T00:00:00Z",
          "connectionLimit": -1, "inherit": True}  # fmt: skip


@pytest.fixture
def api() -> FakeApi:
    return FakeApi()


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal.jsonl")


def roles(api: FakeApi) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (api.cluster["spec"].get("managed") or {}).get("roles") or []
    return found


def secrets_of(api: FakeApi) -> list[str]:
    return [name for kind, name in api.objects if kind == "secrets"]


def own(api: FakeApi) -> OwnRole:
    return OwnRole(api, "pg", NAME, VirtualClock())


def made(api: FakeApi, journal: Journal, version: int = 15) -> Credential:
    return own(api).make(journal, version, lambda credential: credential.user in [r["name"] for r in roles(api)])


def dropped(api: FakeApi) -> Any:
    return lambda role: role not in [r["name"] for r in roles(api) if r["ensure"] == "present"]


def test_the_role_is_made_and_removed_without_a_trace(api: FakeApi, journal: Journal) -> None:
    before = copy.deepcopy(api.cluster["spec"])
    credential = made(api, journal)
    (entry,) = roles(api)
    assert entry["createdb"] and entry["login"] and entry["inRoles"] == ["pg_monitor", "pg_checkpoint"]
    assert "superuser" not in entry and "createrole" not in entry
    made_secret = api.objects["secrets", entry["passwordSecret"]["name"]]
    assert made_secret["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "walproof"
    assert made_secret["metadata"]["ownerReferences"][0]["uid"] == api.cluster["metadata"]["uid"]
    assert credential.password not in journal.path.read_text()
    own(api).remove(journal, dropped(api))
    assert api.cluster["spec"] == before and secrets_of(api) == ["pg-app"] and journal.pending() == ()
    own(api).remove(journal, dropped(api))


def test_roles_of_others_are_left_as_they_are(api: FakeApi, journal: Journal) -> None:
    api.change(CLUSTERS, "pg", {"spec": {"managed": {"roles": [THEIRS], "services": {"disabledDefaultServices": []}}}})
    made(api, journal)
    assert roles(api)[0] == THEIRS and len(roles(api)) == 2
    own(api).remove(journal, dropped(api))
    assert roles(api) == [THEIRS] and "services" in api.cluster["spec"]["managed"]


def test_a_role_that_somebody_adds_meanwhile_is_not_overwritten(api: FakeApi, journal: Journal) -> None:
    """A merge patch replaces the whole list: without the version it was read at, theirs would be gone."""
    times = [1]

    def meanwhile() -> None:
        if times:
            times.pop()
            api.change(CLUSTERS, "pg", {"spec": {"managed": {"roles": [THEIRS]}}})

    api.before_patch = meanwhile
    credential = made(api, journal)
    assert [r["name"] for r in roles(api)] == ["reporting", credential.user]


def test_a_killed_run_leaves_what_revert_removes(api: FakeApi, journal: Journal) -> None:
    credential = made(api, journal)
    left = own(api).left(journal)
    assert left is not None and (left.user, left.password) == (credential.user, credential.password)
    own(api).remove(journal, dropped(api))
    assert own(api).left(journal) is None and secrets_of(api) == ["pg-app"]


def test_a_role_that_the_operator_is_about_to_make_is_dropped_once_it_is_made(api: FakeApi, journal: Journal) -> None:
    """Its entry taken out before, the role would come and stay."""
    made(api, journal)
    ensured: list[str] = []

    def gone(_: str) -> bool:
        """Made at the third look, dropped at the second under `absent`."""
        ensured.append(roles(api)[0]["ensure"])
        return ensured.count("present") < 3 or ensured.count("absent") > 1

    own(api).remove(journal, gone)
    assert ensured == ["present"] * 3 + ["absent"] * 2 and roles(api) == []


def test_killed_before_the_secret_was_made(api: FakeApi, journal: Journal) -> None:
    api.forbidden = {("create", "secrets")}
    with pytest.raises(ApiError, match="may not create secrets"):
        made(api, journal)
    assert len(journal.pending()) == 1 and own(api).left(journal) is None
    own(api).remove(journal, dropped(api))
    assert journal.pending() == ()


def test_a_role_that_the_operator_cannot_make(api: FakeApi, journal: Journal) -> None:
    def refuse(_: Credential) -> bool:
        for entry in roles(api):
            status = {"managedRolesStatus": {"cannotReconcile": {entry["name"]: ["role is reserved"]}}}
            api.change(CLUSTERS, "pg", {"status": status})
        return False

    with pytest.raises(TargetError, match=r"cannot make the role walproof_\w+: role is reserved"):
        own(api).make(journal, 15, refuse)
    with pytest.raises(WaitTimeout, match="SETTING_IN_EFFECT"):
        own(FakeApi()).make(journal, 15, lambda _: False)


def test_a_role_that_the_operator_cannot_drop_stays_in_the_journal(api: FakeApi, journal: Journal) -> None:
    name = made(api, journal).user

    def owning(_: str) -> bool:
        api.change(CLUSTERS, "pg", {"status": {"managedRolesStatus": {"cannotReconcile": {name: ["it owns a table"]}}}})
        return False

    with pytest.raises(TargetError, match=r"cannot drop the role walproof_\w+: it owns a table"):
        own(api).remove(journal, owning)
    assert [c.name for c in journal.pending()] == [name] and len(secrets_of(api)) == 2


def test_entries_of_another_cluster_and_of_another_users_role_stay(api: FakeApi, journal: Journal) -> None:
    made(api, journal)
    (entry,) = roles(api)
    theirs = {**THEIRS, "comment": entry["comment"]}
    api.change(CLUSTERS, "pg", {"spec": {"managed": {"roles": [theirs, entry]}}})
    copied = copy.deepcopy(api.cluster)
    copied["metadata"]["name"] = "copy"
    api.put(CLUSTERS, copied)
    OwnRole(api, "copy", "cnpg:default/copy", VirtualClock()).remove(journal, dropped(api))
    assert roles(api) == [theirs, entry] and len(journal.pending()) == 1
    own(api).remove(journal, dropped(api))
    assert roles(api) == [theirs] and api.objects["clusters", "copy"]["spec"] == copied["spec"]


def test_a_reason_that_stands_at_the_end_is_said_however_new(api: FakeApi, journal: Journal) -> None:
    looks: list[str] = []

    def usable(credential: Credential) -> bool:
        looks.append(credential.user)
        reasons = {credential.user: ["not now"] if len(looks) > 130 else None}
        api.change(CLUSTERS, "pg", {"status": {"managedRolesStatus": {"cannotReconcile": reasons}}})
        return False

    with pytest.raises(TargetError, match="not now"):
        own(api).make(journal, 15, usable)


def test_a_reason_that_passes_is_no_refusal(api: FakeApi, journal: Journal) -> None:
    """From 1.29.2 on a new secret may not be read until the operator has patched the instance's Role."""
    looks: list[str] = []

    def usable(credential: Credential) -> bool:
        looks.append(credential.user)
        reasons = [f'secrets "{SECRET}" is forbidden'] if len(looks) < 15 else None
        status = {"managedRolesStatus": {"cannotReconcile": {credential.user: reasons}}}
        api.change(CLUSTERS, "pg", {"status": status})
        return len(looks) > 15

    assert own(api).make(journal, 15, usable).user == looks[-1]


@pytest.mark.parametrize("drops", [True, False])
def test_a_role_whose_entry_a_manifest_took_out_is_dropped_or_stays_in_the_journal(
    drops: bool, api: FakeApi, journal: Journal
) -> None:
    """`managed.roles` is replaced as a whole by kubectl apply, Argo CD and Flux."""
    name = made(api, journal).user
    api.change(CLUSTERS, "pg", {"spec": {"managed": {"roles": [THEIRS]}}})
    told: list[tuple[str, str]] = []

    def gone(_: str) -> bool:
        return drops and {"absent"} == {r["ensure"] for r in roles(api) if r["name"] == name}

    if drops:
        own(api).remove(journal, gone, Reverting(lambda kind, of: told.append((kind, of))))
        assert told == [("role", name), ("secret", SECRET)]
        assert roles(api) == [THEIRS] and journal.pending() == () and secrets_of(api) == ["pg-app"]
        return
    with pytest.raises(WaitTimeout):
        own(api).remove(journal, gone)
    assert [c.name for c in journal.pending()] == [name] and len(secrets_of(api)) == 2


def test_before_15_there_is_no_role_for_checkpoints(api: FakeApi, journal: Journal) -> None:
    made(api, journal, version=14)
    assert roles(api)[0]["inRoles"] == ["pg_monitor"]


def test_a_role_whose_database_cannot_be_made_is_removed(
    api: FakeApi, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = CnpgFile(kind="cnpg", cluster="default/pg", reach="pods")
    cluster = CnpgCluster(NAME, file, api)
    cluster.journal = journal
    monkeypatch.setattr(cluster, "_may", lambda: (False, 15))
    monkeypatch.setattr(cluster, "_usable", lambda credential: True)
    monkeypatch.setattr(cluster, "_gone", dropped(api))
    users: list[str] = []

    def refused(self: ExternalCluster) -> None:
        users.append(cluster.members()["pg-1"].user)
        raise TargetError("walproof's database cannot be made")

    monkeypatch.setattr(ExternalCluster, "open_database", refused)
    with pytest.raises(TargetError, match="database cannot be made"):
        cluster.open_database()
    assert users[0].startswith("walproof_") and cluster.members()["pg-1"].user == "app"
    assert roles(api) == [] and secrets_of(api) == ["pg-app"] and journal.pending() == ()


def reverted(
    api: FakeApi, journal: Journal, monkeypatch: pytest.MonkeyPatch, ended_on: frozenset[str] = frozenset(), **more: Any
) -> list[str]:
    """What revert says: what stays, then what it removed; SQL has the role as long as the spec has."""
    file = CnpgFile(kind="cnpg", cluster="default/pg", reach="pods")
    cluster = CnpgCluster(NAME, file, api)
    monkeypatch.setattr(cluster, "observe", lambda: view("pg-1"))
    monkeypatch.setattr(cluster, "_usable", lambda credential: True)
    monkeypatch.setattr(cluster, "_gone", dropped(api))
    removed: list[tuple[str, str]] = []

    def revert(self: ExternalCluster, journal: Journal, reverting: Reverting) -> list[str]:
        for change in journal.pending(NAME):
            if change.what == "database":
                reverting.tell("database", change.name)
                journal.undone(change)
        return []

    monkeypatch.setattr(ExternalCluster, "revert", revert)
    sentences = cluster.revert(journal, Reverting(lambda *one: removed.append(one), ended_on, **more))
    assert journal.pending() == ()
    return [*sentences, *(f"{kind} {name}" for kind, name in removed)]


def made_by(api: FakeApi, maker: str) -> None:
    for (kind, _), tree in api.objects.items():
        if kind == "secrets" and MADE_BY in tree["metadata"].get("annotations", {}):
            tree["metadata"]["annotations"][MADE_BY] = maker
    for role in roles(api):
        role["comment"] = f"{MARK}: {maker}"


@pytest.mark.parametrize("secret", ["there", "deleted by hand"])
def test_what_an_ended_run_left_is_found_by_its_label(
    secret: str, api: FakeApi, journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = made(api, journal).user
    if secret != "there":
        api.remove(SECRETS, "pg-walproof-role")
    before = copy.deepcopy(api.objects)
    lost, dead = Journal(tmp_path / "another.jsonl"), f"{machine()} 999999999 1 {BOOT}"
    assert reverted(api, lost, monkeypatch) == [] and api.objects == before, "its maker is this process, which runs"
    made_by(api, "elsewhere 7 1 a-boot")
    sentences = reverted(api, lost, monkeypatch)
    assert f"role {name} was made by walproof on elsewhere, where it may still run: left alone" in sentences[-1]
    assert len(sentences) == (2 if secret == "there" else 1) and len(roles(api)) == 1
    said = [f"database {name}", f"role {name}", *(["secret pg-walproof-role"] if secret == "there" else [])]
    elsewhere = copy.deepcopy(api.api.store.objects)
    assert reverted(api, lost, monkeypatch, frozenset(["elsewhere"])) == said, "the user says that it has ended there"
    api.api.store.objects = elsewhere
    made_by(api, dead)
    assert reverted(api, lost, monkeypatch) == said, "its database is sought too"
    assert roles(api) == [] and secrets_of(api) == ["pg-app"]


def test_a_member_whose_node_is_away_keeps_nothing_else_from_being_reverted(
    api: FakeApi, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(api, journal)
    for fault in ("freeze pg-1", "freeze pg-3", "stop pg-2"):
        journal.note(0.0, NAME, "cnpg fault", fault, before=None, after=None)
    api.change(CLUSTERS, "pg", {"metadata": {"annotations": {"cnpg.io/fencedInstances": '["pg-2"]'}}})
    api.away = {"pg-1"}
    with pytest.raises(TargetError, match="freeze pg-1 is not undone: pg-1 does not answer"):
        reverted(api, journal, monkeypatch)
    assert roles(api) == [] and secrets_of(api) == ["pg-app"]
    assert "cnpg.io/fencedInstances" not in api.cluster["metadata"]["annotations"]
    assert [change.name for change in journal.pending()] == ["freeze pg-1"]
    unseen = Instances(api, "pg", NAME, VirtualClock(), lambda: journal).thaw_all()
    assert unseen == ["could not look at pg-1, where a process may be stopped: pg-1 does not answer"]


def test_a_role_that_is_not_walproofs_is_not_adopted(
    api: FakeApi, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = f"{MARK}: {machine()} 999999999 1 {BOOT}"
    theirs = [THEIRS, THEIRS | {"name": "walproof_admin", "comment": dead}, THEIRS | {"name": "walproof_01234567"}]
    api.change(CLUSTERS, "pg", {"spec": {"managed": {"roles": theirs}}})
    assert reverted(api, journal, monkeypatch) == [] and roles(api) == theirs


def test_what_the_operator_remembers_of_the_role_goes_too(
    api: FakeApi, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where this user may write the status; else it stays, as CloudNativePG leaves it."""
    theirs = {"reporting": {"transactionID": 1}}
    name = made(api, journal).user
    status = {"byStatus": {"reconciled": ["reporting", name], "not-managed": ["app"], "pending-reconciliation": [name]}}
    known = status | {"passwordStatus": {**theirs, name: {"transactionID": 2}}}
    api.change(CLUSTERS, "pg", {"status": {"managedRolesStatus": known}})
    own(api).remove(journal, dropped(api))
    after = api.cluster["status"]["managedRolesStatus"]
    assert after["passwordStatus"] == theirs
    assert after["byStatus"] == {"reconciled": ["reporting"], "not-managed": ["app"]}
    api.change(CLUSTERS, "pg", {"status": {"managedRolesStatus": {"passwordStatus": {made(api, journal).user: {}}}}})
    patch = api.patch

    def without_status(*given: Any) -> Any:
        if any(given[3:]):
            raise ApiError("may not patch clusters/status", code=403)
        return patch(*given)

    monkeypatch.setattr(api, "patch", without_status)
    own(api).remove(journal, dropped(api))
    assert len(api.cluster["status"]["managedRolesStatus"]["passwordStatus"]) == 2 and journal.pending() == ()


def test_a_secret_without_a_role_is_swept_and_one_of_another_cluster_is_not(
    api: FakeApi, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = f"{machine()} 999999999 1 {BOOT}"
    ours, former = api.cluster["metadata"], {"name": "pg", "uid": "u"}
    for name, owner in (
        ("pg-walproof", ours),
        ("pg2-walproof", {"name": "pg2", "uid": "v"}),
        ("pg-walproof-role", former),
    ):
        tree = created_objects.secret(created_objects.metadata(name, {"metadata": owner}), "Opaque", {})
        api.put(SECRETS, tree)
    made_by(api, dead)
    assert reverted(api, journal, monkeypatch) == ["secret pg-walproof"]
    assert sorted(secrets_of(api)) == ["pg-app", "pg-walproof-role", "pg2-walproof"]


def test_a_second_run_is_refused_and_takes_nothing_of_the_first(api: FakeApi, journal: Journal, tmp_path: Path) -> None:
    first, later = made(api, journal), Journal(tmp_path / "later.jsonl")
    before = copy.deepcopy(api.objects)
    with pytest.raises(ApiError, match="another run of walproof is at work on this cluster") as wrong:
        made(api, later)
    for said in (
        f"its secret pg-walproof-role (walproof/run={first.user}) was made ",
        f" s ago on {socket.gethostname()}",
    ):
        assert said in wrong.value.message
    assert own(api).left(later) is None, "the password there is not of the later run's role"
    own(api).remove(later, dropped(api))
    assert later.pending() == () and api.objects == before
    left = own(api).left(journal)
    assert left is not None and left.user == first.user


def test_a_secret_of_that_name_that_is_not_ours_is_left_alone(api: FakeApi, journal: Journal) -> None:
    theirs = {"metadata": {"name": "pg-walproof-role"}, "data": {"username": "eA==", "password": "eA=="}}
    api.put(SECRETS, theirs)
    with pytest.raises(ApiError, match="the secret pg-walproof-role is there and not walproof's"):
        made(api, journal)
    assert api.objects["secrets", "pg-walproof-role"]["data"] == theirs["data"] and roles(api) == []
    assert own(api).left(journal) is None
    own(api).remove(journal, dropped(api))
    assert api.objects["secrets", "pg-walproof-role"]["data"] == theirs["data"] and journal.pending() == ()
