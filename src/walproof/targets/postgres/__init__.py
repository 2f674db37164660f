"""Plain PostgreSQL with streaming replication as a target."""

from walproof.model.ports import Target
from walproof.targets import TargetType
from walproof.targets.external.target_file import kind_of


def _open(address: str) -> Target:
    from walproof.targets.postgres.target import open_postgres

    return open_postgres(address)


TYPE = TargetType("postgres", lambda address: kind_of(address) == "postgres", _open)
