"""A Patroni cluster as a target."""

from functools import partial

from walproof.model.ports import Target
from walproof.targets import TargetType
from walproof.targets.external.target_file import kind_of


def _open(address: str, *, answering: bool = True) -> Target:
    from walproof.targets.patroni.target import open_patroni

    return open_patroni(address, answering=answering)


TYPE = TargetType(
    "patroni", lambda address: kind_of(address) == "patroni", _open, unasked=partial(_open, answering=False)
)
