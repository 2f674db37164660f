"""Commands of a target file that undo a fault: run on the server that the fault was of, and on no other."""

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from walproof.errors import TargetError
from walproof.machine.clock import RealClock
from walproof.model.drill import Capability
from walproof.model.ports import SILENT
from walproof.model.topology import Endpoint
from walproof.model.waiting import Wait
from walproof.records.journal import Journal
from walproof.targets.external.faults_by_command import UserCommands
from walproof.targets.sql import known_servers


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("answers", ["", "first", "second", known_servers.UNTOLD])
def test_a_fault_is_not_undone_on_another_server_of_its_address(tmp_path: Path, killed: bool, answers: str) -> None:
    """An address that follows the leader: the first stayed frozen, the second was thawed, and all was told undone."""
    journal, undone = Journal(tmp_path / "journal.jsonl"), tmp_path / "undone"
    server = ["first"]

    def commands() -> UserCommands:
        at = Endpoint((("vip", 7),))
        given = {"freeze": "true", "thaw": f"touch {undone}"}
        clock = RealClock({Wait.NEW_LEADER.name: 0.1})
        return UserCommands(given, lambda _: at, None, lambda: journal, "t", clock, lambda _, there: server[0])

    first = commands()
    first.inject(Capability.FREEZE, "n1")
    server[0] = answers
    if killed:
        said = "; ".join(commands().revert(journal, SILENT))
    else:
        said = ""
        with suppress(TargetError):
            first.undo_all()
    stays = answers not in ("", "first")
    assert (undone.exists(), len(journal.pending())) == (not stays, int(stays))
    assert (f"vip:7 is {answers} now, and the fault is of first" in said) is (stays and killed)


@pytest.mark.parametrize("then", ["first", ""])
def test_a_server_that_starts_is_asked_until_it_tells_which_it_is(tmp_path: Path, then: str) -> None:
    """After a kill under a supervisor it was recovering: `recover` was not run, and the drill ended without it. Another
    server that started at its address was recovered in its place once it was down again.
    """
    journal, undone, answers = Journal(tmp_path / "journal.jsonl"), tmp_path / "undone", ["first"]
    given, at = {"kill": "true", "recover": f"touch {undone}"}, Endpoint((("vip", 7),))
    who: Callable[..., str] = lambda *_: answers.pop() if len(answers) > 1 else answers[0]  # noqa: E731
    clock = RealClock({Wait.NEW_LEADER.name: 1.2})
    commands = UserCommands(given, lambda _: at, None, lambda: journal, "t", clock, who)
    commands.inject(Capability.KILL, "n1")
    answers[:] = [then, known_servers.UNTOLD, known_servers.UNTOLD]
    with suppress(TargetError):
        commands.undo_all()
    assert (undone.exists(), len(journal.pending())) == ((True, 0) if then else (False, 1))


def test_no_second_fault_of_an_address_hides_the_first(tmp_path: Path) -> None:
    """The live page froze the next leader at that address too, and thawing that one was noted of both."""
    journal, server = Journal(tmp_path / "journal.jsonl"), ["first"]
    given, at = {"freeze": "true", "thaw": "true", "kill": "true", "recover": "true"}, Endpoint((("vip", 7),))
    commands = UserCommands(given, lambda _: at, None, lambda: journal, "t", who=lambda _, there: server[0])
    commands.inject(Capability.FREEZE, "n1")
    server[0] = "second"
    with pytest.raises(TargetError, match="freeze of n1 is not undone yet, on first"):
        commands.inject(Capability.FREEZE, "n1")
    commands.inject(Capability.KILL, "n1")
    with pytest.raises(TargetError, match="is second now, and the fault is of first"):
        commands.undo_all()
    assert [change.name for change in journal.pending()] == ["freeze n1"]


def test_who_lets_nobody_in_answers_all_the_same() -> None:
    """A new leader that was full was taken for the frozen one."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        at = Endpoint((("127.0.0.1", listening.getsockname()[1]),))

        def refuse() -> None:
            for _ in range(2):
                client, _ = listening.accept()
                with client:
                    client.recv(8)
                    client.sendall(b"N")

        with ThreadPoolExecutor(1) as pool:
            refusing = pool.submit(refuse)
            assert known_servers.made_of(at) == known_servers.UNTOLD
            refusing.result()
    assert known_servers.made_of(at) == ""


def test_nothing_is_done_to_a_server_that_would_not_be_known_again(tmp_path: Path) -> None:
    journal, done = Journal(tmp_path / "journal.jsonl"), tmp_path / "done"
    given = {"freeze": f"touch {done}", "thaw": "true"}
    commands = UserCommands(
        given, lambda _: Endpoint((("vip", 7),)), None, lambda: journal, "t", who=lambda _, there: ""
    )
    with pytest.raises(TargetError, match="freeze is not done"):
        commands.inject(Capability.FREEZE, "n1")
    assert (done.exists(), journal.pending(), commands.injected) == (False, (), [])
