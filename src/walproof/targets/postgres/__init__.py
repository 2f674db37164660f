"""Plain PostgreSQL with streaming replication as a target."""

from functools import partial

from walproof.model.ports import Target
from walproof.targets import TargetType
from walproof.targets.external.target_file import kind_of


def _open(address: str, *, answering: bool = True) -> Target:
    from walproof.targets.postgres.target import open_postgres

    return open_postgres(address, answering=answering)


TYPE = TargetType(
    "postgres", lambda address: kind_of(address) == "postgres", _open, unasked=partial(_open, answering=False)
)
