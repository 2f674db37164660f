"""The doctor's look at any real target: where its members are, whether Patroni is there, one snapshot of facts."""

from walproof.errors import TargetError, UsageError
from walproof.model.facts import Facts
from walproof.model.ports import Target
from walproof.targets.external.cluster import OwnCluster
from walproof.targets.lab.target import LabTarget
from walproof.targets.patroni.rest import PatroniRest, RestAccess, facts_of
from walproof.targets.patroni.target import PatroniTarget
from walproof.targets.sql.facts import Address, gathered


def facts_at(target: Target) -> Facts:
    """One snapshot; UsageError for a target that is no real server, TargetError when nobody answers."""
    if isinstance(target, PatroniTarget):
        facts = gathered(target.name, target.addresses(), lambda: facts_of(target.rest))
    elif isinstance(target, OwnCluster):
        facts = gathered(target.name, target.addresses())
    elif isinstance(target, LabTarget):
        blueprint = target.blueprint
        rest = PatroniRest(RestAccess(tuple(blueprint.rest_url(m) for m in blueprint.members)))
        facts = gathered(f"lab {blueprint.name}", _of_lab(target), lambda: facts_of(rest))
    else:
        raise UsageError(f"{target.name} has no settings to look at", "the doctor looks at real servers only")
    if not facts.looked_at:
        words = facts.members[0].error if facts.members else "it has no members"
        raise TargetError(
            f"no member of {target.name} could be looked at: {words}", "is it up, are the DSN and password right?"
        )
    return facts


def _of_lab(target: LabTarget) -> list[Address]:
    blueprint = target.blueprint
    return [
        Address(m, f"{blueprint.address(m)}:5432", blueprint.member_endpoint(m).conninfo()) for m in blueprint.members
    ]
