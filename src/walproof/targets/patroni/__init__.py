"""A Patroni cluster as a target."""

from walproof.model.ports import Target
from walproof.targets import TargetType
from walproof.targets.external.target_file import kind_of


def _open(address: str) -> Target:
    from walproof.targets.patroni.target import open_patroni

    return open_patroni(address)


TYPE = TargetType("patroni", lambda address: kind_of(address) == "patroni", _open)
