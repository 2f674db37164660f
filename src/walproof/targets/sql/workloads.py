"""Tables that workloads need: pgbench's own at a scale, or the one for inserts. Never replaces what is not ours."""

import subprocess
from importlib.resources import files
from pathlib import Path

import psycopg

from walproof.errors import MachineError, TargetError
from walproof.model.plan import Workload, WorkloadKind
from walproof.model.topology import Endpoint

MARK = "written by walproof; safe to drop"
_HERE = files("walproof.targets.sql.queries")
_WHOSE = (_HERE / "workload_mark.sql").read_bytes()
_INSERTED = (_HERE / "inserted.sql").read_bytes()
_TOUCH = (_HERE / "touch_pages.sql").read_bytes()
_LOAD_S = 1800


def ready(endpoint: Endpoint, workload: Workload, pgbench: Path) -> None:
    """Make the workload's tables when missing or of another scale; MachineError when somebody else's are there.

    After a checkpoint the first change of each page puts the whole page into the WAL: that is done here, beforehand.
    """
    try:
        with psycopg.connect(
            endpoint.conninfo(application_name="walproof", gssencmode="disable", connect_timeout="5"), autocommit=True
        ) as connection:
            connection.execute("SET synchronous_commit = local")
            marks = {str(name): str(comment) for name, comment in connection.execute(_WHOSE).fetchall()}
            if workload.kind in (WorkloadKind.INSERT, WorkloadKind.BATCH):
                _inserts(connection, marks.get("inserted"))
            elif marks.get("pgbench_accounts") != scale_mark(workload.scale):
                _pgbench(connection, endpoint, workload, pgbench, found=marks.get("pgbench_accounts"))
            if workload.kind in (WorkloadKind.TPCB_LIKE, WorkloadKind.SIMPLE_UPDATE):
                connection.execute(_TOUCH)
    except psycopg.Error as error:
        raise TargetError(
            f"the tables for {workload.text} cannot be made: {str(error).strip()}", "is the target up and writable?"
        ) from None


def scale_mark(scale: int) -> str:
    """The comment of our pgbench tables at that scale."""
    return f"{MARK} (scale {scale})"


def _inserts(connection: psycopg.Connection, found: str | None) -> None:
    if found is None:
        connection.execute(_INSERTED)
    elif found == MARK:
        connection.execute("TRUNCATE walproof.inserted")
    else:
        raise _not_ours("walproof.inserted")


def _pgbench(
    connection: psycopg.Connection, endpoint: Endpoint, workload: Workload, pgbench: Path, *, found: str | None
) -> None:
    if found is not None and not found.startswith(MARK):
        raise _not_ours("pgbench_accounts")
    # Commits of the loading wait for nobody: at a standby far away they would only cost time.
    way = endpoint.conninfo(
        application_name="walproof",
        gssencmode="disable",
        options="-c synchronous_commit=local -c client_min_messages=error",
    )
    argv = [str(pgbench), "-i", "-I", "dtGvp", "-q", "-s", str(workload.scale), way]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=_LOAD_S)
    if done.returncode:
        raise TargetError(
            f"pgbench -i: {(done.stderr or done.stdout).strip().splitlines()[-1]}", "is there free space?"
        )
    mark = scale_mark(workload.scale)
    connection.execute(f"COMMENT ON TABLE pgbench_accounts IS '{mark}'".encode())
    connection.execute("CHECKPOINT")


def _not_ours(table: str) -> MachineError:
    return MachineError(
        f"the table {table} is not walproof's, so it is left alone", "drop it, or give walproof another database"
    )
