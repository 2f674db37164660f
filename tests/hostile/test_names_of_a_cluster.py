"""Names, hosts and ports that a cluster gives and that are no plain words: they enter no command of a target file."""

from pathlib import Path

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.tiers import each
from walproof.errors import TargetError, UsageError
from walproof.model.drill import Capability
from walproof.model.guarantee import ConfigChange, QuorumKind, SyncReplication, read_standby_names
from walproof.model.topology import ClusterView, Endpoint, MemberView, Role
from walproof.targets.external import commands
from walproof.targets.external.faults_by_command import CommandOperations, UserCommands
from walproof.targets.external.target_file import TargetFile
from walproof.targets.postgres import target as postgres
from walproof.targets.postgres.target import NAMES, PostgresConfiguration, Servers
from walproof.targets.simulated.clock import VirtualClock

ODD = (
    "n1$(touch {})", "n1`touch {}`", "n1; touch {}", "n1' ; touch {} ; '", 'n1" ; touch {} ; "', "n1\ntouch {}",
    "n1 && touch {}", "n1 > {}",
)  # fmt: skip
COMMANDS = ("echo {%s}", 'echo "kill {%s}"', "sh -c 'echo {%s}'", "echo '{%s}'")
"""The second is `ssh HOST "kill {member}"`: the user's quotes and walproof's together are none."""
PLACES = ("member", "host", "member2")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("odd", ODD)
def test_no_name_of_a_cluster_runs_a_command(odd: str, command: str, place: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    places = {"member": "n1", "host": "10.0.0.1", "port": "5432", "member2": "n2", place: odd.format(mark)}
    with pytest.raises(TargetError, match="enters no command") as refused:
        commands.run(commands.filled(command % place, places))
    assert refused.value.exit_code == 3
    assert "\n" not in refused.value.message
    assert not mark.exists()


@each(["--force", "-rf", "..", ".", "a/b", "../n2", "n1\n", "\nn1", "n\x001", "ñ1", "n1%", "[::1]", "n" * 300])
def test_an_option_a_path_and_what_is_no_word_are_refused(word: str) -> None:
    with pytest.raises(TargetError):
        commands.filled("kill {member}", {"member": word})


@each(["n1", "pg_1", "db-0.db.svc.cluster.local", "10.0.0.1", "fd00::1", "::1", "n1:5433", "N1"])
def test_ordinary_names_and_addresses_are_filled_in_as_they_are(word: str) -> None:
    assert (
        commands.filled("ssh {host} -- kill {member}", {"host": word, "member": word}) == f"ssh {word} -- kill {word}"
    )


def test_what_the_command_does_not_name_is_not_asked_about() -> None:
    """A member behind a socket has a folder as its host."""
    places = commands.places_of("n1", Endpoint((("/var/run/postgresql", 5432),)))
    assert commands.filled("pg_ctl kill {member}", places) == "pg_ctl kill n1"


@each(["ssh {server}", "{0}", "{}", "{member.upper}", "{member:{host}}", "{member", "{member!x}"])
def test_another_place_is_one_sentence(command: str) -> None:
    with pytest.raises(UsageError, match="cannot be filled in"):
        commands.filled(command, {"member": "n1", "host": "h$(x)"})


@given(st.text(max_size=12))
def test_a_name_is_either_refused_or_one_plain_word(name: str) -> None:
    try:
        filled = commands.filled('echo "{member}"', {"member": name})
    except TargetError:
        return
    assert name == "" or filled == f'echo "{name}"'
    assert commands.run(filled).strip("\n").strip("'") == name


def test_a_fault_on_such_a_member_is_refused_before_anything_and_leaves_nothing_to_undo(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    given = {"freeze": f"touch {mark}", "thaw": "echo {member}"}
    able = UserCommands(given, lambda member: Endpoint((("h", 1),)))
    with pytest.raises(TargetError):
        able.faults()[Capability.FREEZE].inject("n1$(x)")
    assert not mark.exists(), "it was frozen, and could not have been thawed"
    assert able.injected == []
    able.undo_all()


def test_a_switchover_to_such_a_member_is_refused(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    able = UserCommands({"switchover": 'echo "to {member2}"'}, lambda member: Endpoint((("h", 1),)))
    commanded = CommandOperations(able, lambda: "n1", lambda: ClusterView(0.0, (), None), VirtualClock())
    with pytest.raises(TargetError):
        commanded.switch_over(f"n2$(touch {mark})")
    assert not mark.exists()
    commanded.switch_over()


def standby_names(*standbys: str) -> str | None:
    """What walproof would write on a cluster of the leader n1 and these standbys."""
    members = [MemberView("n1", Role.LEADER, "running"), *(MemberView(s, Role.STANDBY, "streaming") for s in standbys)]
    view = ClusterView(1.0, tuple(members), "n1")
    configuration = PostgresConfiguration("t", VirtualClock(), dict, lambda: view)
    planned = configuration.plan(ConfigChange({}, SyncReplication(QuorumKind.ANY, 1)))
    return {one.name: one.value for one in planned.settings}[NAMES]


def test_a_standby_that_calls_itself_a_star_lets_no_other_count() -> None:
    with pytest.raises(UsageError, match="cannot stand in synchronous_standby_names"):
        standby_names("n2", "*")


@each(['a", "b', 'a"', "a,b", 'n2") , ANY 0 ("x'])
def test_a_standby_that_calls_itself_so_lets_no_other_count(name: str) -> None:
    quorum = read_standby_names(standby_names("n2", name) or "")
    assert quorum is not None and (quorum.k, set(quorum.names)) == (1, {"n1", "n2", name})


def test_other_names_of_standbys_are_written_as_they_are() -> None:
    assert standby_names("n2", "18/main", "db-3.example") == 'ANY 1 ("18/main", "db-3.example", "n1", "n2")'


LEADER, REAL, STRANGER = "10.0.0.1:5432", "10.0.0.2:5432", "10.0.0.66:5432"


@each([
    ({"db2": REAL}, (), "n2", "db2", {"n1": LEADER, "db2": REAL, STRANGER: STRANGER}),
    ({"db2": REAL}, (), "n2", "DB2", {"n1": LEADER, "db2": REAL, STRANGER: STRANGER}),
    ({"db2": REAL}, (), "n2", "n2", {"n1": LEADER, "db2": REAL, STRANGER: STRANGER}),
    ({"db2": REAL}, (), "n2", REAL, {"n1": LEADER, "db2": REAL, STRANGER: STRANGER}),
    ({"db2": REAL}, (), "n2", "n3", {"n1": LEADER, "db2": REAL, "n3": STRANGER}),
    ({"n1": REAL}, (), "n2", "n3", {LEADER: LEADER, "n1": REAL, "n3": STRANGER}),
    ({}, (REAL,), "n2", "n2", {"n1": LEADER, "n2": REAL, STRANGER: STRANGER}),
    ({}, (REAL,), "", REAL, {"n1": LEADER, REAL: REAL, STRANGER: STRANGER}),
    ({}, (REAL,), "n1", "n3", {LEADER: LEADER, REAL: REAL, "n3": STRANGER}),
])  # fmt: skip
def test_a_standby_that_calls_itself_as_another_server_is_called_takes_no_name(
    labels: dict[str, str],
    hosts: tuple[str, ...],
    real: str,
    called: str,
    expected: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sender = {"address": "10.0.0.66", "application_name": called}
    names = {LEADER: "n1", REAL: real, STRANGER: called}

    def asked(endpoint: Endpoint) -> postgres._Server:
        place = ":".join(map(str, endpoint.hosts[0]))
        if place not in names:
            raise psycopg.OperationalError("nobody listens there")
        leads = place == LEADER
        return postgres._Server(endpoint, names[place], {"leader": leads}, [sender, sender] if leads else [], "")

    monkeypatch.setattr(postgres, "_asked", asked)
    places = tuple(postgres._place(host) for host in (LEADER, *hosts))
    servers = Servers(TargetFile(kind="postgres", members=labels), Endpoint(places))
    for _ in range(2):
        found = {name: ":".join(map(str, endpoint.hosts[0])) for name, endpoint in servers._find().items()}
        assert found == expected
