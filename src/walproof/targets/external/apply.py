"""A change as a whole, on a cluster of yours or the lab: made, awaited until in effect, taken back if it is not."""

from dataclasses import dataclass
from typing import Any

from walproof.errors import Error, UsageError
from walproof.lab import home
from walproof.model.ports import Target
from walproof.targets.external.cluster import OwnCluster
from walproof.targets.external.target_file import TargetFile
from walproof.targets.lab.target import LabTarget
from walproof.targets.patroni.rest import PatroniRest, RestAccess
from walproof.targets.patroni.target import PatroniTarget
from walproof.targets.postgres.target import PostgresTarget
from walproof.targets.sql.alter_system import Difference, Notebook
from walproof.targets.sql.connection import Ways

Change = dict[str, Any]


@dataclass(frozen=True, slots=True)
class InEffect:
    """What the views say after it: names in effect, standbys that count."""

    standby_names: str
    synchronous: tuple[str, ...]


def configurable(target: Target) -> PatroniTarget | PostgresTarget:
    """The target as one whose configuration can be applied; the lab through its own Patroni."""
    if isinstance(target, (PatroniTarget, PostgresTarget)):
        return target
    if isinstance(target, LabTarget):
        blueprint = target.blueprint
        urls = tuple(blueprint.rest_url(m) for m in blueprint.members)
        rest = PatroniRest(RestAccess(urls, "walproof", home.read_secrets(blueprint)["rest"]))
        members = {m: blueprint.member_endpoint(m) for m in blueprint.members}
        first = members[blueprint.members[0]]
        ways = Ways(first.hosts, first.database, first.user, first.passfile, ())
        return PatroniTarget(f"lab:{blueprint.name}", TargetFile(kind="patroni", rest=urls), ways, members, rest)
    raise UsageError(f"{target.name} has no configuration to apply to", "apply to the lab or to a cluster of yours")


def differences(target: PatroniTarget | PostgresTarget, change: Change) -> tuple[Difference, ...]:
    """What the change would change; nothing is touched."""
    return target.differences(change)


def apply(target: PatroniTarget | PostgresTarget, change: Change, journal: Notebook) -> InEffect:
    """Make it and wait until it is in effect; on any error or Ctrl-C it is taken back before that goes on."""
    target.journal = journal
    try:
        if isinstance(target, PatroniTarget):
            target.patch(change)
        else:
            target.set_parameters(change)
    except (Error, KeyboardInterrupt) as wrong:
        left = target.put_back(journal)
        if isinstance(wrong, Error):
            wrong.message += "; everything was put back" + "".join(f"; {sentence}" for sentence in left)
            wrong.args = (wrong.message,)
        raise
    view = target.observe()
    return InEffect(view.standby_names, view.synchronous)


def put_back(target: OwnCluster, journal: Notebook) -> list[str]:
    """Undo every pending change and remove walproof's own database where one was left; sentences about what stays."""
    left = target.put_back(journal)
    for change in journal.pending(target.name):
        if change.what == "database":
            target.sweep()
            journal.undone(change)
    return left
