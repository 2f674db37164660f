"""The doctor's look at any real target: where its members are, whether Patroni is there, one snapshot of facts."""

from walproof.errors import TargetTrouble, UsageTrouble
from walproof.model.facts import Facts
from walproof.model.ports import Target
from walproof.targets.gathering import Address, gathered
from walproof.targets.lab import LabTarget
from walproof.targets.own import OwnCluster
from walproof.targets.patroni import PatroniTarget
from walproof.targets.rest import PatroniRest, RestAccess, facts_of


def facts_at(target: Target) -> Facts:
    """One snapshot; UsageTrouble for a target that is no real server, TargetTrouble when nobody answers."""
    if isinstance(target, PatroniTarget):
        facts = gathered(target.name, target.addresses(), lambda: facts_of(target.rest))
    elif isinstance(target, OwnCluster):
        facts = gathered(target.name, target.addresses())
    elif isinstance(target, LabTarget):
        blueprint = target.blueprint
        rest = PatroniRest(RestAccess(tuple(blueprint.rest_url(m) for m in blueprint.members)))
        facts = gathered(f"lab {blueprint.name}", _of_lab(target), lambda: facts_of(rest))
    else:
        raise UsageTrouble(f"{target.name} has no settings to look at", "the doctor looks at real servers only")
    if not facts.looked_at:
        words = facts.members[0].trouble if facts.members else "it has no members"
        raise TargetTrouble(
            f"no member of {target.name} could be looked at: {words}", "is it up, are the DSN and password right?"
        )
    return facts


def _of_lab(target: LabTarget) -> list[Address]:
    blueprint = target.blueprint
    return [
        Address(m, f"{blueprint.address(m)}:5432", blueprint.member_endpoint(m).conninfo()) for m in blueprint.members
    ]
