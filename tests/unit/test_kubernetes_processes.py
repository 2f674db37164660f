"""The stand-in's processes: what a kill leaves of a member, and that a stand-in which has stopped ends what waits."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.fixtures.kubernetes.cloudnativepg import CloudNativePG
from tests.fixtures.kubernetes.processes import ProcessPostgres
from tests.fixtures.kubernetes.stand_in import stand_in
from tests.fixtures.kubernetes.state import Order
from tests.fixtures.kubernetes.target import Kubernetes
from tests.fixtures.tiers import each
from walproof.errors import WaitTimeout

NAMES = ("pg-1", "pg-2")


@pytest.fixture
def members(tmp_path: Path) -> Iterator[ProcessPostgres]:
    """Two members with the files of running servers; their postmaster.pid names this very process' children."""
    made = ProcessPostgres(tmp_path, NAMES)
    for name in NAMES:
        (tmp_path / name).mkdir()
        (tmp_path / f"{name}-socket").mkdir()
        for file in (".s.PGSQL.15432", ".s.PGSQL.15432.lock"):
            (tmp_path / f"{name}-socket" / file).touch()
    yield made
    made.close()


@pytest.fixture
def postmaster(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that nobody reaps until the test is over: kill(2) finds it once it has ended too."""
    with subprocess.Popen(["sleep", "600"]) as process:
        (tmp_path / "pg-2" / "postmaster.pid").write_text(f"{process.pid}\n")
        yield process
        process.kill()


@pytest.mark.parametrize("before", [(), (signal.SIGSTOP,), (signal.SIGKILL,), (signal.SIGSTOP, signal.SIGCONT)])
def test_a_killed_member_leaves_no_lock_file_while_it_waits_to_be_reaped(
    members: ProcessPostgres, postmaster: "subprocess.Popen[bytes]", before: tuple[signal.Signals, ...]
) -> None:
    for number in before:
        postmaster.send_signal(number)
    members.carry_out(Order("kill", "pg-2"), "pg-1")
    os.kill(postmaster.pid, 0)  # to a starting PostgreSQL that reads a lock file with this number it would run
    assert not (members.home / "pg-2/postmaster.pid").exists()
    assert list((members.home / "pg-2-socket").iterdir()) == []
    assert len(list((members.home / "pg-1-socket").iterdir())) == 2, "another member's stay"
    members.carry_out(Order("kill", "pg-2"), "pg-1")  # as when what was deleted is killed


@each(
    [RuntimeError("pg_ctl failed"), OSError(98, "in use"), KeyError("pg-4"), WaitTimeout("late", ""), psycopg.Error()]
)
def test_what_ended_the_stand_in_ends_walproof_that_waits_for_it(
    why: Exception, members: ProcessPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[str]] = []

    class Waiting(Kubernetes):
        def walproof(self, *_: str, **__: Any) -> "subprocess.Popen[str]":
            pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            started.append(subprocess.Popen(["sleep", "600"], start_new_session=True, **pipes))
            return started[0]

    def fails(_: CloudNativePG) -> None:
        raise why

    monkeypatch.setattr(CloudNativePG, "_tick", fails)
    with contextlib.suppress(RuntimeError), stand_in(members.home) as running:  # its own end says it too
        waiting = Waiting(running, members, members.home)
        with pytest.raises(RuntimeError, match="the stand-in's CloudNativePG stopped"):
            waiting.ended("prove")
    assert started[0].returncode == -signal.SIGKILL
