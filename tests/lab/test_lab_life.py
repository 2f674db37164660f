"""A lab's life through the command line: up, status, psql, switchover, down; killed on its way; bad input."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from tests.fixtures.command_line import ended, one_sentence
from tests.fixtures.labs import lab_command as run
from tests.fixtures.labs import port_base, state_of_its_own, what_is_left, why_no_lab
from walproof.errors import UsageError
from walproof.lab import configuration, home, members, network_links
from walproof.lab.blueprint import Blueprint
from walproof.lab.client_access import routed_leader
from walproof.lab.patroni import observe, wait_until_healthy
from walproof.lab.privileges import users_of_lab
from walproof.machine.clock import RealClock
from walproof.model.waiting import Wait, wait_for
from walproof.patroni.config import SyncMode

pytestmark = [pytest.mark.lab, pytest.mark.skipif(bool(why_no_lab()), reason=why_no_lab() or "-")]


@pytest.fixture(scope="module")
def created() -> Iterator[Blueprint]:
    with state_of_its_own():
        output = run("up", "--port", str(port_base()), "--param", "work_mem=7MB", "--json")
        assert output.returncode == 0, output.stderr
        blueprint = home.load()
        assert json.loads(output.stdout)["ports"] == blueprint.ports
        yield blueprint
        ended = run("down")
        assert ended.returncode == 0, ended.stderr
        assert what_is_left(blueprint) == []
        again = run("down")
        assert (again.returncode, "nothing to remove" in again.stdout) == (0, True)


def test_every_standby_is_streaming_and_synchronous_once_up_returns(created: Blueprint) -> None:
    output = run("status", "--json")
    status = json.loads(output.stdout)
    assert set(status) == {"members", "leader", "synchronous_standby_names"}
    assert [set(m) for m in status["members"]] == [{"name", "role", "state", "timeline", "lag_bytes", "address"}] * 3
    assert sorted(m["state"] for m in status["members"]) == ["running", "streaming", "streaming"]
    assert status["synchronous_standby_names"].startswith("ANY 1 (")
    assert status["leader"] in run("status").stdout


def test_a_second_up_says_that_the_lab_is_up(created: Blueprint) -> None:
    output = run("up")
    assert output.returncode == 3
    assert "is up already" in output.stderr
    assert "Traceback" not in output.stderr


def test_psql_asks_the_leader_or_a_member_and_parameters_are_in_effect(created: Blueprint) -> None:
    assert "7MB" in run("psql", "-c", "SHOW work_mem").stdout
    leader = json.loads(run("status", "--json").stdout)["leader"]
    standby = next(m for m in created.members if m != leader)
    assert " t" in run("psql", "--member", standby, "-c", "SELECT pg_is_in_recovery()").stdout
    assert run("psql", "--member", "n9", "-c", "SELECT 1").returncode == 2


def test_clients_reach_the_leader_over_every_route_and_nobody_without_the_password(created: Blueprint) -> None:
    for route in ("multi-host", "haproxy", "pgbouncer"):
        with psycopg.connect(created.endpoint(route).client_conninfo(), autocommit=True) as connection:
            assert connection.execute("SELECT pg_is_in_recovery()").fetchone() == (False,)
    conninfo = created.member_endpoint("n1").client_conninfo(passfile="/dev/null", password="guessed")
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(conninfo)


def test_secrets_are_in_files_that_only_their_owner_reads(created: Blueprint) -> None:
    password = home.read_secrets(created)["postgres"]
    holding = [path for path in created.home.rglob("*") if path.is_file() and password.encode() in path.read_bytes()]
    assert len(holding) >= 5
    assert all(path.stat().st_mode & 0o037 == 0 for path in holding)
    assert {path.stat().st_gid for path in holding if path.stat().st_mode & 0o040} == users_of_lab(created.number)
    assert not any(path.suffix == ".log" for path in holding)
    for member in created.members:
        lines = [process.cmdline() for process in members.processes(created, member)]
        assert lines and password not in str(lines)


def test_logs_of_a_member_and_of_the_access_layer_are_shown(created: Blueprint) -> None:
    assert "patroni.log" in run("logs", "n1", "--lines", "5").stdout
    assert "haproxy.log" in run("logs", "access").stdout
    assert run("logs", "n9").returncode == 2


def test_a_switchover_hands_over_and_clients_of_the_pool_lose_no_transaction(created: Blueprint) -> None:
    conninfo = created.endpoint("pgbouncer").client_conninfo(connect_timeout="60")
    over, failed, done = threading.Event(), [], []

    def write() -> None:
        try:
            with psycopg.connect(conninfo, autocommit=True, prepare_threshold=None) as connection:
                while not over.is_set():
                    connection.execute("INSERT INTO handed VALUES (1)")
                    done.append(1)
        except psycopg.Error as wrong:
            failed.append(str(wrong))

    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("CREATE TABLE handed (a int)")
    writers = [threading.Thread(target=write) for _ in range(4)]
    for writer in writers:
        writer.start()
    output = run("switchover")
    before = len(done)
    wait_for(Wait.FIRST_COMMIT_AFTER, lambda: len(done) > before or bool(failed), RealClock())
    over.set()
    for writer in writers:
        writer.join()
    assert output.returncode == 0, output.stderr
    assert failed == []
    with psycopg.connect(conninfo, autocommit=True) as connection:
        assert connection.execute("SELECT count(*) FROM handed").fetchone() == (len(done),)
    leader = json.loads(run("status", "--json").stdout)["leader"]
    assert f"The leader is {leader}" in output.stdout
    assert routed_leader(created) == leader
    assert run("switchover", "--to", leader).returncode == 2


def test_parameters_and_names_are_in_effect_everywhere_once_they_are_set(created: Blueprint) -> None:
    wait_until_healthy(created, RealClock())
    configuration.set_parameters(created, {"max_connections": "410", "work_mem": "5MB"})
    for member in created.members:
        with psycopg.connect(created.member_endpoint(member).client_conninfo()) as connection:
            assert connection.execute("SHOW max_connections").fetchone() == ("410",)
            assert connection.execute("SHOW work_mem").fetchone() == ("5MB",)
    configuration.set_parameters(created, {"work_mem": None})
    assert "7MB" in run("psql", "-c", "SHOW work_mem").stdout
    with pytest.raises(UsageError):
        configuration.set_parameters(created, {"work_mem": "much"})
    try:
        configuration.set_sync(created, SyncMode.STRICT, 2)
        assert observe(created).standby_names.startswith("2 (")
        configuration.set_sync(created, SyncMode.OFF, 1)
        assert observe(created).standby_names == ""
    finally:
        # The next test begins with a healthy cluster, whatever became of this one.
        configuration.set_sync(created, SyncMode.QUORUM, 1)
    assert observe(created).standby_names.startswith("ANY 1 (")


def _reached(folder: Path, moment: str) -> bool:
    name = home.lab_name()
    blueprint = home.stored(name)
    if blueprint is None:
        return False
    checks: dict[str, Callable[[], bool]] = {
        "planned": lambda: True,
        "wired": lambda: bool(network_links.leftovers({blueprint.number})),
        "started": lambda: all(members.processes(blueprint, m) for m in blueprint.members),
    }
    return checks[moment]()


@pytest.mark.parametrize(
    ("moment", "verb"),
    [
        pytest.param("planned", "down", marks=pytest.mark.nightly),
        ("wired", "down"),
        pytest.param("started", "up", marks=pytest.mark.nightly),
    ],
)
def test_what_a_killed_up_left_is_destroyed_by_the_next_command(own_state: Path, moment: str, verb: str) -> None:
    words = [sys.executable, "-m", "walproof", "lab", "up", "--port", str(port_base() + 20)]
    up = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while not _reached(own_state, moment) and time.monotonic() < until:
        assert up.poll() is None
    os.kill(up.pid, signal.SIGKILL)
    up.wait()
    left = home.stored(home.lab_name())
    assert left is not None
    if verb == "up":
        # The new lab has one member: it could not have been the old one coming back.
        assert run("up", "--members", "1", "--port", str(port_base() + 20)).returncode == 0
        assert json.loads(run("status", "--json").stdout)["leader"] == "n1"
    assert run("down").returncode == 0
    assert what_is_left(left) == []


def test_an_up_that_is_interrupted_ends_what_it_had_started(own_state: Path) -> None:
    words = [sys.executable, "-m", "walproof", "lab", "up", "--port", str(port_base() + 20)]
    up = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert up.stdout is not None
    said: list[str] = []
    while "waiting until" not in (line := up.stdout.readline()):  # what follows takes seconds
        assert line, said
        said.append(line)
    up.send_signal(signal.SIGINT)
    blueprint = home.stored(home.lab_name())
    output, _ = up.communicate(timeout=120)
    assert up.returncode == 130, output
    assert "Traceback" not in output
    assert blueprint is not None
    assert what_is_left(blueprint) == []


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("up", "--members", "0"), 2, "1 to 7"),
        (("up", "--members", "8"), 2, "1 to 7"),
        (("up", "--quorum", "3"), 2, "quorum"),
        (("up", "--quorum", "0"), 2, "quorum"),
        (("up", "--param", "no_such_thing=1"), 2, "no_such_thing"),
        (("up", "--param", "work_mem=much"), 2, "work_mem"),
        (("up", "--param", "port=1"), 2, "port"),
        (("up", "--param", "work_mem"), 2, "parameter"),
        (("up", "--sync", "maybe"), 2, "maybe"),
        (("up", "--disk-size", "-3"), 2, "size"),
        (("up", "--postgres", "9"), 3, "postgresql"),
        (("up", "--postgres", "/nowhere"), 3, "/nowhere"),
        (("psql", "-c", "SELECT 1"), 3, "no lab is up"),
        (("status",), 3, "no lab is up"),
        (("logs", "n1"), 3, "no lab is up"),
        (("nonsense",), 2, "nonsense"),
    ],
)
def test_bad_input_is_answered_in_one_sentence(
    own_state: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, says: str
) -> None:
    one_sentence(ended(capsys, ["lab", *words]), says, code)
    assert not (own_state / home.lab_name()).exists()


def test_a_taken_address_is_named_and_nothing_is_started(own_state: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port_base() + 20))
        taken.listen()
        output = run("up", "--port", str(port_base() + 20))
    assert output.returncode == 3
    assert f"127.0.0.1:{port_base() + 20}" in output.stderr
    assert not (own_state / home.lab_name()).exists()


def test_a_missing_program_is_named_with_its_package(own_state: Path) -> None:
    script = (
        "import shutil, sys; which = shutil.which\n"
        "shutil.which = lambda name, **more: None if name == 'haproxy' else which(name, **more)\n"
        "from walproof.cli.main import main; main(['lab', 'up'])"
    )
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert output.returncode == 3
    assert "haproxy" in output.stderr
    assert "make install" in output.stderr
