"""walproof's own database on an external cluster: made, marked, removed; one without our mark is never touched."""

from functools import partial
from importlib import resources

import psycopg
from psycopg import sql

from walproof.errors import MachineError, TargetError
from walproof.model.ports import Clock
from walproof.model.topology import Endpoint
from walproof.model.waiting import Wait, wait_for
from walproof.targets.sql.connection import connected

MARK = "made by walproof; safe to drop"
_WHOSE = (resources.files("walproof.targets.sql.queries") / "database_mark.sql").read_bytes()


def whose(endpoint: Endpoint, name: str) -> str | None:
    """The comment of the database of that name, "" when it has none, None when there is no such database."""
    with connected(endpoint) as connection:
        row = connection.execute(_WHOSE, {"name": name}).fetchone()
    return None if row is None else str(row["comment"] or "")


def make(leader: Endpoint, name: str) -> bool:
    """Make it when it is missing; whether it was made now. MachineError when one without our mark is there."""
    mark = whose(leader, name)
    if mark == MARK:
        return False
    if mark is not None:
        raise MachineError(
            f"the database {name} is not walproof's, so it is left alone",
            'rename it, or name another one: database = "…" in the target file',
        )
    with connected(leader) as connection:
        try:
            # Its own commits wait for nobody: where standbys are missing it must not hang.
            connection.execute("SET synchronous_commit = local")
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
            connection.execute(sql.SQL("COMMENT ON DATABASE {} IS {}").format(sql.Identifier(name), sql.Literal(MARK)))
        except psycopg.errors.InsufficientPrivilege:
            user = connection.info.user
            raise TargetError(
                f"role {user} may not make walproof's own database", f'as superuser: ALTER ROLE "{user}" CREATEDB'
            ) from None
        except psycopg.Error as wrong:
            raise TargetError(f"walproof's database cannot be made: {' '.join(str(wrong).split())}", "") from None
    return True


def arrived(standbys: list[Endpoint], name: str, clock: Clock) -> None:
    """Wait until every standby has replayed its making."""
    for endpoint in standbys:
        wait_for(Wait.SETTING_IN_EFFECT, partial(_there, endpoint, name), clock)


def _there(endpoint: Endpoint, name: str) -> bool:
    return whose(endpoint, name) is not None


def remove(leader: Endpoint, name: str) -> bool:
    """Drop it with everything in it, where it carries our mark; whether there was one."""
    if whose(leader, name) != MARK:
        return False
    with connected(leader) as connection:
        try:
            connection.execute("SET synchronous_commit = local")
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
        except psycopg.Error as wrong:
            raise TargetError(
                f"walproof's database {name} stays: {' '.join(str(wrong).split())}",
                f"DROP DATABASE {name} WITH (FORCE)",
            ) from None
    return True
