"""A CloudNativePG cluster as a target."""

from walproof.model.ports import Target
from walproof.targets import Rights, TargetType
from walproof.targets.external.target_file import kind_of


def _open(address: str) -> Target:
    from walproof.targets.cnpg.target import open_cnpg

    return open_cnpg(address)


def _rights(address: str | None) -> Rights:
    from walproof.targets.cnpg.rbac import rights

    return rights(address)


def _accepts(address: str) -> bool:
    return address.startswith("cnpg:") or kind_of(address) == "cnpg"


TYPE = TargetType("cnpg", _accepts, _open, rights=_rights)
