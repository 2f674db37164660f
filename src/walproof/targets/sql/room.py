"""Whether a server has room for the load's clients: its other clients can log in all the while, administrators too."""

import psycopg

from walproof.errors import TargetError, UsageError
from walproof.machine.sql_file import statements
from walproof.model.topology import Endpoint
from walproof.targets.sql.connection import session

LEFT_FREE = 5
"""Sessions left to others, and to those by which walproof looks."""
_ROOM = statements("walproof.targets.sql", "observe.sql")["room"].encode()


def need_room(endpoint: Endpoint, clients: int) -> None:
    """UsageError where so many more would not leave a handful of sessions; a pool's own size bounds its clients."""
    if endpoint.pooled:
        return
    try:
        with session(endpoint) as connection:
            limits = connection.execute(_ROOM).fetchall()
    except psycopg.Error as error:
        raise TargetError(f"the leader does not answer: {str(error).strip()}", "is the cluster up?") from None
    for what, most, there in limits:
        able = most - there - LEFT_FREE
        if clients > able:
            raise UsageError(
                f"{most} sessions may log in to {what}, {there} are there: "
                f"{clients} more would not leave {LEFT_FREE} free",
                f"ask for at most {able} (--writers, --clients, --max-clients)"
                if able > 0
                else "when fewer are there; SELECT * FROM pg_stat_activity",
            )
