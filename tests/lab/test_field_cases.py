"""Settings and pgbench scripts from the field, on a real primary and standby, by the command line."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures import field_cases
from tests.fixtures.command_line import Run, walproof  # noqa: F401
from tests.fixtures.external_cluster import pair_dsn
from tests.fixtures.field_cases import Case
from tests.fixtures.plain_pair import PlainPair, pair, synchronous  # noqa: F401
from tests.fixtures.tiers import each
from walproof.machine.clock import RealClock
from walproof.model.waiting import Wait, wait_for

pytestmark = pytest.mark.lab
BASE = {"quorum-without-spare", "standby-without-slot", "one-machine", "user-timeout-off", "keepalives-long"}
"""What the pair itself has: two servers on one machine, without slots, at PostgreSQL's own timeouts of TCP."""
SETTINGS = {"synchronous_standby_names": "ANY 1 (n2)", "wal_sender_timeout": "20s"}
SHORT = ("--clients", "1", "--levels", "local", "--budget", "0.4s", "--sample", "0.3s", "--allow", "load")


@contextlib.contextmanager
def changed(pair: PlainPair, case: Case) -> Iterator[None]:  # noqa: F811
    """The case's SQL in effect, the standby's first: what a role has of its own holds there too, and may be refused."""
    followed = str(pair.sql("n2", "SHOW primary_conninfo")[0][0])
    statements = {name: [*case.get("sql", ()), *case.get(name, ())] for name in ("n2", "n1")}
    try:
        for name, texts in statements.items():
            _applied(pair, name, {**SETTINGS, **({"primary_conninfo": followed} if name == "n2" else {})}, texts)
        yield
    finally:
        for text in case.get("undo", ()):
            pair.sql("n1", text)
        for name in statements:
            pair.sql(name, "ALTER SYSTEM RESET ALL")
        _applied(pair, "n2", {"primary_conninfo": followed}, [])
        _applied(pair, "n1", {}, [])


def _applied(pair: PlainPair, name: str, settings: dict[str, str], texts: list[str]) -> None:  # noqa: F811
    for setting, value in settings.items():
        quoted = value.replace("'", "''")
        pair.sql(name, f"ALTER SYSTEM SET {setting} = '{quoted}'")
    for text in texts:
        pair.sql(name, text)
    asked = "SELECT extract(epoch FROM pg_conf_load_time())::float8"
    loaded = pair.sql(name, f"{asked} FROM pg_reload_conf()")
    wait_for(Wait.SETTING_IN_EFFECT, lambda: pair.sql(name, asked) > loaded, RealClock())


@each(field_cases.cases("postgres"), push=2)
def test_settings(case: Case, pair: PlainPair, walproof: Run) -> None:  # noqa: F811
    with changed(pair, case):
        code, out, err = walproof("doctor", "--json", "--target", pair_dsn(pair, "n1", "n2"))
    findings = json.loads(out)["findings"]
    found = [f for f in findings if f["id"] not in BASE]
    assert "Traceback" not in err
    assert (code, sorted(f["id"] for f in found)) == (1, sorted(case["finds"])), found
    assert BASE - {f["id"] for f in findings} <= set(case.get("gone", ()))
    assert {f["severity"] for f in found} <= {case.get("severity", "")} or "severity" not in case
    assert all(case.get("fix", "") in f["fix"] for f in found)


@each(field_cases.cases("scripts"), push=2)
def test_scripts(case: Case, pair: PlainPair, walproof: Run, tmp_path: Path) -> None:  # noqa: F811
    script = tmp_path / "script.sql"
    script.write_bytes(case["script"].encode())
    tables = field_cases.HERE / "tables.sql"
    words = ("--target", pair_dsn(pair, "n1", "n2"), "--init", str(tables), "--workload", str(script))
    code, out, err = walproof("price", *SHORT, *words, "--record", str(tmp_path / "record"))
    assert "Traceback" not in err
    assert code == case.get("exit", 0), err
    assert case.get("says", "") in err
    assert ("tps" in out) == (code == 0)
    assert pair.sql("n1", "SELECT count(*) FROM pg_database WHERE datname LIKE 'walproof%'") == [(0,)]
