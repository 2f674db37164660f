"""Commands of a target file that undo a fault: run on the server that the fault was of, and on no other."""

import os
import re
import signal
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from tests.fixtures.tiers import each
from walproof.errors import TargetError
from walproof.machine import pid_files
from walproof.machine.clock import RealClock
from walproof.model.drill import Capability
from walproof.model.ports import SILENT
from walproof.model.topology import Endpoint
from walproof.model.waiting import Wait, wait_for
from walproof.records.journal import Journal
from walproof.targets.external import commands
from walproof.targets.external.faults_by_command import UserCommands
from walproof.targets.sql import known_servers


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("answers", ["", "first", "second", known_servers.UNTOLD])
def test_a_fault_is_not_undone_on_another_server_of_its_address(tmp_path: Path, killed: bool, answers: str) -> None:
    """An address that follows the leader: the first stayed frozen, the second was thawed, and all was told undone."""
    journal, undone = Journal(tmp_path / "journal.jsonl"), tmp_path / "undone"
    server = ["first"]

    def made() -> UserCommands:
        at = Endpoint((("vip", 7),))
        given = {"freeze": "true", "thaw": f"touch {undone}"}
        clock = RealClock({Wait.NEW_LEADER.name: 0.1})
        return UserCommands(given, lambda _: at, None, lambda: journal, "t", clock, lambda _, there: server[0])

    first = made()
    first.inject(Capability.FREEZE, "n1")
    server[0] = answers
    if killed:
        said = "; ".join(made().revert(journal, SILENT))
    else:
        said = ""
        with suppress(TargetError):
            first.undo_all()
    stays = answers not in ("", "first")
    assert (undone.exists(), len(journal.pending())) == (not stays, int(stays))
    assert (f"vip:7 is {answers} now, and the fault is of first" in said) is (stays and killed)


@each(["first", ""])
def test_a_server_that_starts_is_asked_until_it_tells_which_it_is(then: str, tmp_path: Path) -> None:
    """After a kill under a supervisor it was recovering: `recover` was not run, and the drill ended without it. Another
    server that started at its address was recovered in its place once it was down again.
    """
    journal, undone, answers = Journal(tmp_path / "journal.jsonl"), tmp_path / "undone", ["first"]
    given, at = {"kill": "true", "recover": f"touch {undone}"}, Endpoint((("vip", 7),))
    who: Callable[..., str] = lambda *_: answers.pop() if len(answers) > 1 else answers[0]  # noqa: E731
    clock = RealClock({Wait.NEW_LEADER.name: 1.2})
    able = UserCommands(given, lambda _: at, None, lambda: journal, "t", clock, who)
    able.inject(Capability.KILL, "n1")
    answers[:] = [then, known_servers.UNTOLD, known_servers.UNTOLD]
    with suppress(TargetError):
        able.undo_all()
    assert (undone.exists(), len(journal.pending())) == ((True, 0) if then else (False, 1))


def test_no_second_fault_of_an_address_hides_the_first(tmp_path: Path) -> None:
    """The live page froze the next leader at that address too, and thawing that one was noted of both."""
    journal, server = Journal(tmp_path / "journal.jsonl"), ["first"]
    given, at = {"freeze": "true", "thaw": "true", "kill": "true", "recover": "true"}, Endpoint((("vip", 7),))
    able = UserCommands(given, lambda _: at, None, lambda: journal, "t", who=lambda _, there: server[0])
    able.inject(Capability.FREEZE, "n1")
    server[0] = "second"
    with pytest.raises(TargetError, match="freeze of n1 is not undone yet, on first"):
        able.inject(Capability.FREEZE, "n1")
    able.inject(Capability.KILL, "n1")
    with pytest.raises(TargetError, match="is second now, and the fault is of first"):
        able.undo_all()
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
    able = UserCommands(given, lambda _: Endpoint((("vip", 7),)), None, lambda: journal, "t", who=lambda _, there: "")
    with pytest.raises(TargetError, match="freeze is not done"):
        able.inject(Capability.FREEZE, "n1")
    assert (done.exists(), journal.pending(), able.injected) == (False, (), [])


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize(("thaw", "runs"), [("touch {host}", False), ("touch old; : {member}", True)])
def test_a_fault_is_undone_where_it_was_done_whoever_has_the_name_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool, thaw: str, runs: bool
) -> None:
    """A member was replaced while it was frozen: the new machine was thawed, the old one forgotten as undone."""
    monkeypatch.chdir(tmp_path)
    journal, at = Journal(tmp_path / "journal.jsonl"), ["old"]

    def made() -> UserCommands:
        given = {"freeze": "true", "thaw": thaw}
        return UserCommands(given, lambda _: Endpoint(((at[0], 7),)), None, lambda: journal, "t")

    first = made()
    first.inject(Capability.FREEZE, "n1")
    at[0] = "new"
    if killed:
        said = "; ".join(made().revert(journal, SILENT))
    else:
        said = ""
        with suppress(TargetError):
            first.undo_all()
    assert ("n1 was at old:7 when that was done, and is at new:7 now: thaw is not run" in said) is (killed and not runs)
    assert ((tmp_path / "old").exists(), (tmp_path / "new").exists(), not journal.pending()) == (runs, False, runs)
    at[0] = "old"
    assert made().revert(journal, SILENT) == []
    assert (tmp_path / "old").exists()
    assert journal.pending() == ()


def test_a_command_does_nothing_before_its_process_is_noted(tmp_path: Path) -> None:
    """Of a run killed between the two, `revert` would not know what to wait for."""
    done = tmp_path / "done"

    def refuse(process: str) -> None:
        assert pid_files.ended(process) is False
        raise TargetError("", "")

    with pytest.raises(TargetError):
        commands.run(f"touch {done}", refuse)
    run = os.fork()
    if not run:
        with suppress(BaseException):
            commands.run(f"touch {done}", lambda _: os.kill(os.getpid(), signal.SIGKILL))
        os._exit(0)
    os.waitpid(run, 0)
    wait_for(Wait.PROGRAM_GONE, lambda: not any(str(tmp_path) in one for one in command_lines()), RealClock())
    assert not done.exists()


def test_a_command_that_has_become_another_users_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ordinary user's `sudo …` that hung: nothing was undone until it ended by itself."""
    told = list[str]()

    def not_ours(*_: int) -> None:
        raise PermissionError

    for name, value in (("_LONGEST_S", 0.1), ("_LAST_S", 0.1), ("os.killpg", not_ours)):
        monkeypatch.setattr(f"{commands.__name__}.{name}", value)
    try:
        with pytest.raises(commands.CutOff):
            commands.run("exec sleep 600", told.append)
    finally:
        os.kill(pid := int(told[0].split()[1]), signal.SIGKILL)
        os.waitpid(pid, 0)


def command_lines() -> list[str]:
    texts = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            texts.append(path.read_text(errors="replace"))
    return texts


def test_a_command_that_is_given_up_ends_and_its_fault_stays_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It isolated its host after `recover` had run, and nothing was left to undo."""
    monkeypatch.setattr(commands, "_LONGEST_S", 0.2)
    journal = Journal(tmp_path / "journal.jsonl")
    given = {"isolate": f"sh -c 'sleep 600; touch {tmp_path}/late'; true", "recover": f"touch {tmp_path}/undone"}
    able = UserCommands(given, lambda _: Endpoint((("h", 7),)), None, lambda: journal, "t")
    with pytest.raises(TargetError, match="did not end within"):
        able.inject(Capability.ISOLATE, "n1")
    wait_for(Wait.PROGRAM_GONE, lambda: not any(str(tmp_path) in one for one in command_lines()), RealClock())
    with pytest.raises(TargetError, match="may still act on n1 after recover, which was run"):
        able.undo_all()
    assert (tmp_path / "undone").exists()
    assert [change.name for change in journal.pending()] == ["isolate n1"]
    able.undo_all()
    given["isolate"] = "true"
    able.inject(Capability.ISOLATE, "n1")
    able.undo_all()
    assert journal.pending() == ()


@each(["", "exec env -i /usr/bin/setpriv --reuid=12345 --clear-groups "])
def test_nothing_is_undone_while_the_command_of_a_killed_run_still_runs(how: str, tmp_path: Path) -> None:
    """Revert ran `recover` before it, and told that the fault was undone; then where it had changed its user."""
    if how and os.getuid():
        pytest.skip("only root may become another user")
    journal, begun, undone = Journal(tmp_path / "journal.jsonl"), tmp_path / "begun", tmp_path / "undone"
    given = {"isolate": f"touch {begun}; {how}sh -c 'sleep 600; true'", "recover": f"touch {undone}"}

    def made() -> UserCommands:
        return UserCommands(given, lambda _: Endpoint((("h", 7),)), None, lambda: journal, "t")

    run = os.fork()
    if not run:
        made().inject(Capability.ISOLATE, "n1")
        os._exit(0)
    wait_for(Wait.PROGRAM_READY, begun.exists, RealClock())
    os.kill(run, signal.SIGKILL)
    os.waitpid(run, 0)
    (said,) = made().revert(journal, SILENT)
    still = re.search(r"its command still runs here, as process (\d+)", said)
    assert still
    assert not undone.exists()
    os.killpg(int(still[1]), signal.SIGKILL)
    wait_for(Wait.PROGRAM_READY, lambda: pid_files.identity(int(still[1])) is None, RealClock())
    assert (made().revert(journal, SILENT), undone.exists(), journal.pending()) == ([], True, ())
