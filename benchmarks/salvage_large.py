"""`python -m benchmarks.salvage_large [--data-gb 10] [--lost-gb 1]`: what `walproof salvage` of much data takes.

A primary and its standby with pgbench's tables; the standby is promoted, and pgbench goes on at the old one until that
much WAL is lost. Printed: the time, its steps, the most memory of one process, and rows found. Needs root, and three
times the data on disk."""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from psycopg.conninfo import make_conninfo

from benchmarks.command import command
from tests.fixtures.plain_pair import PlainPair, plain_pair, promote, stop
from walproof.machine.programs import pgbench

_GB_PER_SCALE = 0.0148


def _wal_gb(pair: PlainPair, since: str) -> float:
    ((size,),) = pair.sql("n1", f"SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '{since}')::float8")
    return float(str(size)) / 1e9


def _pgbench(pair: PlainPair, *arguments: str) -> None:
    subprocess.run(
        [str(pgbench()), *arguments, pair.member_endpoint("n1").client_conninfo()],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def main(*, data_gb: float = 10.0, lost_gb: float = 1.0) -> int:
    """One salvage; exit code 1 where it does not find every transaction that pgbench was told of."""
    with plain_pair() as pair, tempfile.TemporaryDirectory(dir=Path.home()) as folder:
        _pgbench(pair, "-i", "-q", "-I", "dtgp", "-s", str(round(data_gb / _GB_PER_SCALE)))
        ((position, size),) = pair.sql("n1", "SELECT pg_current_wal_lsn(), sum(pg_database_size(oid)) FROM pg_database")
        while pair.sql("n2", f"SELECT pg_last_wal_replay_lsn() >= '{position}'") != [(True,)]:
            time.sleep(0.5)
        pair.sql("n1", "CHECKPOINT")
        promote(pair)
        roles = "pg_read_all_data, pg_write_all_data"
        pair.sql("n2", f"CREATE ROLE salvager LOGIN REPLICATION PASSWORD 'salvager' IN ROLE {roles}")
        ((before,),) = pair.sql("n1", "SELECT pg_current_wal_lsn()")
        while (lost := _wal_gb(pair, str(before))) < lost_gb:
            _pgbench(pair, "-n", "-c", "8", "-t", "1000")
        ((told,),) = pair.sql("n1", "SELECT count(*) FROM pgbench_history")
        stop(pair, "n1")
        dsn = make_conninfo(pair.member_endpoint("n2").client_conninfo(), user="salvager", password="salvager")
        argv = [sys.executable, "-m", "walproof", "salvage", "--old", str(pair.data("n1")), "--new", dsn]
        began, steps = time.monotonic(), list[tuple[float, str]]()
        Path(folder).chmod(0o711)
        with subprocess.Popen(
            [*argv, "--bin", str(pair.bin), "--out", f"{folder}/out", "--json"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            for line in process.stderr or ():
                steps.append((time.monotonic() - began, line.strip()))
            said = process.stdout.read() if process.stdout else ""
        if process.returncode:
            print(*(step for _, step in steps), sep="\n")
            return 1
        found = json.loads(said)
        took = time.monotonic() - began
        memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3
    tables = {one["table"]: one for base in found["databases"] for one in base["tables"]}
    print(f"{float(str(size)) / 1e9:.1f} GB of data, {lost:.2f} GB of WAL, {found['lost_transactions']:,} transactions")
    for (at, step), (end, _) in zip(steps, [*steps[1:], (took, "")], strict=True):
        print(f"{end - at:8.1f} s  {step}")
    rows = sum(one[kind] for one in tables.values() for kind in ("inserted", "updated", "deleted"))
    print(f"{took:8.1f} s  in all, {rows:,} lost changes of rows; most memory of one process: {memory:,.0f} MB")
    inserted = tables["public.pgbench_history"]["inserted"]
    print(f"pgbench committed {told:,} transactions, {inserted:,} rows of its history were found")
    return int(inserted != told)


if __name__ == "__main__":
    command(main)
