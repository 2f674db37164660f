"""The leader's checkpoints."""

from importlib.resources import files

import psycopg

from walproof.model.sample import Checkpoints

_LAST = (files("walproof.targets.sql.queries") / "checkpoint.sql").read_bytes()


def last_checkpoint(connection: psycopg.Connection) -> Checkpoints:
    """The last finished one and how far apart timed ones are; psycopg.Error where this role may not know."""
    ((redo, apart_s),) = connection.execute(_LAST).fetchall()
    return Checkpoints(str(redo), float(apart_s))
