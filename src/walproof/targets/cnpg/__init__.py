"""A CloudNativePG cluster as a target."""

from walproof.errors import MachineError
from walproof.model.ports import Target
from walproof.targets import Rights, TargetType
from walproof.targets.external.target_file import kind_of


def _open(address: str) -> Target:
    try:
        from walproof.targets.cnpg.target import open_cnpg
    except ModuleNotFoundError as wrong:
        if wrong.name != "kubernetes":
            raise
        raise MachineError(
            "CloudNativePG needs the Kubernetes client, which is not installed", "pip install 'walproof[kubernetes]'"
        ) from None
    return open_cnpg(address)


def _rights(address: str | None) -> Rights:
    from walproof.targets.cnpg.rbac import rights

    return rights(address)


def _accepts(address: str) -> bool:
    return address.startswith("cnpg:") or kind_of(address) == "cnpg"


TYPE = TargetType("cnpg", _accepts, _open, rights=_rights)
