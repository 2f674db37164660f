"""What this user may do, asked of RBAC before it is done: what is refused is named with the rule that allows it."""

from collections.abc import Sequence

from walproof.errors import Error
from walproof.model.ports import Capability
from walproof.targets.cnpg.api import ApiError, KubernetesApi
from walproof.targets.cnpg.rbac import Rule, for_fault, missing_of


def refusal(api: KubernetesApi, rules: Sequence[Rule], doing: str) -> ApiError | None:
    """The error where `doing` needs a right that this user lacks; None too where nobody can say."""
    try:
        missing = missing_of(api, rules)
    except Error:
        # Then the API itself will refuse what it does not allow.
        return None
    if not missing:
        return None
    listed = ", ".join(f"{verb} {rule.shown}" for rule in missing for verb in rule.verbs)
    return ApiError(
        f"this user may not {listed} in namespace {api.namespace}, which {doing} needs",
        f"add to the rules of its Role: {' '.join(rule.line for rule in missing)}",
        code=403,
    )


def refused_faults(api: KubernetesApi, cluster: str, instances: Sequence[str]) -> dict[Capability, str]:
    """The faults that this user may not do, each with the reason in one clause."""
    found = {}
    for fault, rules in for_fault(cluster, instances).items():
        wrong = refusal(api, rules, str(fault))
        if wrong is not None:
            found[fault] = f"{wrong.message}; {wrong.hint}"
    return found
