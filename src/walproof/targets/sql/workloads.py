"""Tables that workloads need: pgbench's own at a scale, or the one for inserts; and the leader's last checkpoint.

Never replaces what is not ours."""

import hashlib
import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psycopg

from walproof.errors import MachineError, TargetError, UsageError
from walproof.load.driver import preparing
from walproof.load.own_tables import comment_on, make
from walproof.machine.programs import search_path
from walproof.machine.sql_file import statements
from walproof.model.load import Workspace
from walproof.model.sample import PGBENCH, SYSBENCH, Checkpoints, Workload, WorkloadKind
from walproof.model.topology import Endpoint
from walproof.targets.sql.connection import session
from walproof.targets.sql.ledger import MARK

_STATEMENTS = statements("walproof.targets.sql", "workloads.sql")
_LAST = _STATEMENTS["checkpoint"].encode()


def last_checkpoint(connection: psycopg.Connection) -> Checkpoints:
    """The last finished one and how far apart timed ones are; psycopg.Error where this role may not know."""
    ((redo, apart_s),) = connection.execute(_LAST).fetchall()
    return Checkpoints(str(redo), float(apart_s))


_INSERTED = _STATEMENTS["inserted"].encode()
_IDLE = _STATEMENTS["checkpointer_idle"].encode()
_TOUCH = _STATEMENTS["touch_pages"].encode()
_INIT_DONE = _STATEMENTS["init_done"].encode()
_PGBENCH = frozenset((WorkloadKind.TPCB_LIKE, WorkloadKind.SIMPLE_UPDATE, WorkloadKind.SELECT_ONLY))
_LOAD_S = 1800
_MAKING_S = 2.0 * _LOAD_S
_LOST_CONNECTION = 2
"""psql's exit code (its manual, Exit Status)."""
_INIT_LOG = "pgbench-i.log"
_HINT = "may it write there, and is there free space?"


def ready(endpoint: Endpoint, workload: Workload, pgbench: Path, place: Workspace) -> None:
    """Make the workload's tables when missing or of another scale; MachineError when those there are not ours.

    After a checkpoint the first change of each page puts the whole page into the WAL: that is done here, beforehand,
    by loading the tables after the last checkpoint, or else by changing a row of each page.
    Tables that exist stay as they are: pgbench's must have the workload's scale. pgbench is run in `place`.
    """
    try:
        with session(endpoint, _MAKING_S, client=True) as connection:
            connection.execute("SET synchronous_commit = local")
            if workload.existing:
                if _names(workload) & _PGBENCH:
                    _same_scale(connection, workload.scale)
                return
            if workload.init is not None:
                _init(connection, endpoint, workload.init, pgbench)
            _make(connection, _Loader(endpoint, pgbench, place), workload)
    except psycopg.Error as error:
        raise TargetError(
            f"the tables for {workload.text} cannot be made: {str(error).strip()}", "is the target up and writable?"
        ) from None


def _names(workload: Workload) -> set[str]:
    return {name for name, _ in workload.scripts} or {str(workload.kind)}


@dataclass(frozen=True, slots=True)
class _Loader:
    """pgbench, where it is run, and the endpoint that it loads."""

    endpoint: Endpoint
    pgbench: Path
    place: Workspace

    def load(self, scale: int) -> None:
        """pgbench -i; TargetError with its first error when it fails."""
        words = ("-i", "-I", "dtGvp", "-q", "-s", str(scale))
        argv = _loading(self.place.seen_from_there(self.endpoint), str(self.pgbench), *words)
        try:
            process = self.place.start(argv, _INIT_LOG)
        except OSError as error:
            raise MachineError(f"pgbench cannot be run: {error}", "make install") from None
        try:
            done = process.wait(_LOAD_S)
            code = process.exit_code
        finally:
            process.kill()
        if not done or code:
            output = "".join(path.read_text("utf-8", errors="replace") for path in self.place.fetch(_INIT_LOG))
            why = self.place.lost or (_wrong(output) if done else f"it ran for more than {_LOAD_S} s")
            raise TargetError(f"pgbench -i: {why}", _HINT)


def _make(connection: psycopg.Connection, loader: _Loader, workload: Workload) -> None:
    """The tables that we have for this workload; a user's script may use pgbench's where no --init makes its own."""
    names = _names(workload)
    if workload.driver == SYSBENCH:
        _sysbench(connection, loader.endpoint, workload)
    if workload.driver != PGBENCH:
        return
    inserts = {WorkloadKind.INSERT, WorkloadKind.BATCH}
    if names & inserts:
        _inserts(connection)
    if names & _PGBENCH or (workload.init is None and not names <= inserts):
        fresh = False
        if _pgbench_comment(connection) != scale_mark(workload.scale):
            fresh = _pgbench(connection, loader, workload.scale)
        if names & {WorkloadKind.TPCB_LIKE, WorkloadKind.SIMPLE_UPDATE} and not fresh:
            with connection.transaction():
                _pgbench_comment(connection)
                connection.execute(_TOUCH)


def _redo(connection: psycopg.Connection) -> str:
    """Where the last checkpoint began; "" where this role may not know."""
    try:
        return last_checkpoint(connection).redo
    except psycopg.errors.InsufficientPrivilege:
        return ""


def _sysbench(connection: psycopg.Connection, endpoint: Endpoint, workload: Workload) -> None:
    """Make sysbench's own tables unless they are there at that scale."""
    mark = scale_mark(workload.scale)
    with connection.transaction():
        comment = comment_on(connection, "sbtest1", MARK)
    if comment == mark:
        return
    connection.execute("CHECKPOINT")
    for step in ("cleanup", "prepare") if comment is not None else ("prepare",):
        # sysbench's Lua is looked for in the current folder first, which can be a stranger's.
        done = _run(preparing(workload, endpoint, step), "/")
        if done.returncode:
            raise TargetError(f"sysbench {step}: {_wrong(done.stderr or done.stdout)}", _HINT)
    connection.execute(f"COMMENT ON TABLE sbtest1 IS '{mark}'".encode())


def _same_scale(connection: psycopg.Connection, scale: int) -> None:
    row = connection.execute("SELECT count(*) FROM pgbench_branches").fetchone()
    branches = 0 if row is None else int(row[0])
    if branches != scale:
        raise UsageError(f"pgbench's tables there have scale {branches}, not {scale}", f"--scale {max(1, branches)}")


def _init(connection: psycopg.Connection, endpoint: Endpoint, path: str, pgbench: Path) -> None:
    """Run a user's file by psql in one transaction, unless the same text was run in this database before."""
    with connection.transaction():
        if comment_on(connection, "walproof.init_done", "") is None:
            make(connection, "walproof.init_done", _INIT_DONE)
    try:
        sha256 = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as error:
        raise UsageError(f"the file {path} of --init cannot be read: {error}", "name a file for psql") from None
    if connection.execute("SELECT at FROM walproof.init_done WHERE sha256 = %s", [sha256]).fetchone():
        return
    connection.execute("CHECKPOINT")
    psql = pgbench.with_name("psql")
    argv = [str(psql) if psql.is_file() else "psql", "-X", "-q", "-1", "-v", "ON_ERROR_STOP=1", "-f", path]
    done = _run(_loading(endpoint, *argv, "-d"))
    if done.returncode:
        failed = f"--init {path} failed: {_wrong(done.stderr or done.stdout)}"
        if done.returncode == _LOST_CONNECTION:
            raise TargetError(failed, "is the target up?")
        raise UsageError(failed, "begin it with DROP TABLE IF EXISTS where another version ran before")
    connection.execute("ANALYZE")
    connection.execute("INSERT INTO walproof.init_done (sha256) VALUES (%s)", [sha256])


def scale_mark(scale: int) -> str:
    """The comment of our pgbench tables at that scale."""
    return f"{MARK} (scale {scale})"


def _inserts(connection: psycopg.Connection) -> None:
    with connection.transaction():
        if comment_on(connection, "walproof.inserted", MARK) is None:
            make(connection, "walproof.inserted", _INSERTED)
        else:
            connection.execute("TRUNCATE walproof.inserted")


def _pgbench_comment(connection: psycopg.Connection) -> str | None:
    """The comment on pgbench_accounts, None for none; MachineError where a table of pgbench's is another's."""
    with connection.transaction():
        for table in ("pgbench_branches", "pgbench_tellers", "pgbench_history"):
            comment_on(connection, table, "")
        return comment_on(connection, "pgbench_accounts", MARK)


def _pgbench(connection: psycopg.Connection, loader: _Loader, scale: int) -> bool:
    """Load pgbench's tables after a checkpoint; whether it is known that no other started meanwhile."""
    connection.execute("CHECKPOINT")
    before = _redo(connection)
    loader.load(scale)
    mark = scale_mark(scale)
    connection.execute(f"COMMENT ON TABLE pgbench_accounts IS '{mark}'".encode())
    ((idle,),) = connection.execute(_IDLE).fetchall()
    return bool(idle) and bool(before) and _redo(connection) == before


def _loading(endpoint: Endpoint, *argv: str) -> tuple[str, ...]:
    """A program that loads: its commits wait for no standby: one far away would only cost time."""
    return endpoint.program(
        *argv,
        application_name="walproof",
        gssencmode="disable",
        options="-c synchronous_commit=local -c client_min_messages=error",
    )


def _run(argv: Sequence[str], folder: str | None = None) -> subprocess.CompletedProcess[str]:
    env = {"LC_ALL": "C", "HOME": os.environ.get("HOME", "/"), "PATH": search_path()}
    try:
        return subprocess.run(
            argv, capture_output=True, text=True, errors="replace", check=False, timeout=_LOAD_S, env=env, cwd=folder
        )
    except OSError as error:
        raise MachineError(f"{argv[0]} cannot be run: {error}", "make install") from None


def _wrong(output: str) -> str:
    """The first error that a program that failed wrote, which those after it follow from; else its last line."""
    lines = output.strip().splitlines()
    errors = (line for line in lines if re.search("error:|FATAL:", line, re.IGNORECASE))
    return next(errors, lines[-1] if lines else "it ended without a message")
