"""`python -m benchmarks.lab_lies lies|clocks`: the judge attacked on a real lab, which is undone and destroyed."""

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import psycopg
import pytest

from benchmarks.command import chosen, command
from benchmarks.temporary_lab import benchmark_lab
from tests.fixtures.drills import drilled
from walproof.lab import client_access
from walproof.lab.blueprint import Blueprint, Disk
from walproof.lab.create import LabOrder
from walproof.lab.faults import crashes
from walproof.load.ledger.processes import RunningLedger
from walproof.model.drill import Capability, Drill, Verdict
from walproof.model.guarantee import Level
from walproof.model.load import LedgerOrder, LedgerRun, Rows
from walproof.model.ports import Capabilities, MemberFault
from walproof.model.topology import Endpoint
from walproof.model.waiting import Wait, wait_for
from walproof.proving.campaign import PlannedDrill
from walproof.proving.faults import CATALOGUE
from walproof.targets.lab.target import LabTarget

LEDGER = "walproof.walproof_ledger"
PORT = int(os.environ.get("WALPROOF_TEST_PORT", "5860"))
Act = Callable[[LabTarget], object]
TRIGGER = """
CREATE FUNCTION walproof.lie() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$;
CREATE {kind} TRIGGER lie {when} INSERT ON walproof.walproof_ledger {more} FOR EACH ROW EXECUTE FUNCTION walproof.lie()
"""
CLOCK = """
import time
wall = time.time
time.time = lambda: wall() + float(open({offset!r}).read() or 0)
"""
STEPS = ((0, 0), (5, 5), (-5, -5), (5, -5), (-5, 5))
"""Offsets of the wall clock, s: once the writers commit, and when the fault has been injected."""
TO_OFF = "PERFORM set_config('synchronous_commit', 'off', true); RETURN new;"


def sql(target: LabTarget, *statements: str) -> None:
    """On the leader, waiting for no standby."""
    with psycopg.connect(target.endpoint("direct").client_conninfo(), autocommit=True) as connection:
        connection.execute("SET synchronous_commit = local")
        for statement in statements:
            connection.execute(statement)


def system(target: LabTarget, name: str, value: str | None) -> None:
    """A parameter of the leader by ALTER SYSTEM (None resets it on every member), in effect at once."""
    if value is not None:
        sql(target, f"ALTER SYSTEM SET {name} = '{value}'", "SELECT pg_reload_conf()")
        return
    for member in target.blueprint.members:
        with psycopg.connect(target.member_endpoint(member).client_conninfo(), autocommit=True) as connection:
            connection.execute(f"ALTER SYSTEM RESET {name}")
            connection.execute("SELECT pg_reload_conf()")


@dataclass(frozen=True, slots=True)
class Other:
    """A fault that does something else than it says."""

    act: Callable[[str], object]
    reverse: Callable[[str], object]

    def inject(self, member: str) -> None:
        """The other thing."""
        self.act(member)

    def undo(self, member: str) -> None:
        """What the fault itself would undo."""
        self.reverse(member)


class NoSwitchover:
    """A switchover that does nothing."""

    def switch_over(self, to: str | None = None) -> None:
        """Nothing."""


@dataclass(frozen=True, slots=True)
class Lie:
    """One lie, in which drill it shows, and what is done when the ledger runs, after it stopped, and at the end."""

    what: str
    fault: str = "kill"
    instead: Callable[[Blueprint, MemberFault], Other] | None = None
    begin: Act | None = None
    stopped: Act | None = None
    end: Act | None = None
    kills_writer: bool = False
    pooled: bool = False
    """The route looks like a session of its own; in truth a pooler is there, which drops start-up options."""
    level: Level = Level.ON


@dataclass
class LyingLedger:
    """The lab's ledger, and the lie while it runs."""

    target: "LyingTarget"

    def open_ledger(self, order: LedgerOrder) -> LedgerRun:
        """Start the writers, then lie."""
        run, lie = self.target.ledger.open_ledger(order), self.target.lie
        wait_for(Wait.WRITERS_UP, lambda: run.progress().acknowledged >= order.writers, self.target.clock)
        if lie.begin:
            lie.begin(self.target)
        if lie.kills_writer and isinstance(run, RunningLedger):
            os.kill(run.pids[0], signal.SIGKILL)
        return run

    def read_ledger(self, member: str, drill: int) -> Rows:
        """The rows, after the last lie."""
        if self.target.lie.stopped and not self.target.stopped:
            self.target.stopped = True
            self.target.lie.stopped(self.target)
        return self.target.ledger.read_ledger(member, drill)

    def check_data(self, member: str) -> str:
        """As it is."""
        return self.target.ledger.check_data(member)


class LyingTarget(LabTarget):
    """The lab, telling one lie."""

    def __init__(self, blueprint: Blueprint, lie: Lie) -> None:
        super().__init__(blueprint)
        self.lie, self.stopped = lie, False

    def endpoint(self, route: str) -> Endpoint:
        """The lab's, or its pooler as a session."""
        if not self.lie.pooled or route == "direct":
            return super().endpoint(route)
        return replace(super().endpoint("pgbouncer"), pooled=False)

    def capabilities(self) -> Capabilities:
        """The lab's, one of them lying."""
        able, lie = super().capabilities(), self.lie
        able = replace(able, ledger=LyingLedger(self))
        if lie.fault == "switchover":
            return replace(able, switchover=NoSwitchover())
        if lie.instead is None:
            return able
        name = Capability(lie.fault)
        return replace(able, faults={**able.faults, name: lie.instead(self.blueprint, able.faults[name])})


def nothing(_blueprint: Blueprint, honest: MemberFault) -> Other:
    """Nothing, instead of the fault."""
    return Other(lambda _member: None, honest.undo)


def restart(blueprint: Blueprint, honest: MemberFault) -> Other:
    """An orderly restart in place."""
    return Other(lambda member: crashes.restart(blueprint, member), honest.undo)


def short_freeze(blueprint: Blueprint, honest: MemberFault) -> Other:
    """Frozen, and resumed at once."""

    def act(member: str) -> None:
        honest.inject(member)
        crashes.resume_all(blueprint, member)

    return Other(act, honest.undo)


def killed(blueprint: Blueprint, honest: MemberFault) -> Other:
    """The postmaster killed, and nothing else."""
    return Other(lambda member: crashes.kill(blueprint, member), honest.undo)


def trigger(body: str, *, kind: str = "", when: str = "BEFORE", more: str = "") -> Act:
    """A trigger on the ledger."""
    return lambda target: sql(target, TRIGGER.format(body=body, kind=kind, when=when, more=more))


def names(*values: str) -> Act:
    """Standby names one after the other, each for a second, then those of before: Patroni must go on."""

    def act(target: LabTarget) -> None:
        for value in (*values, None):
            system(target, "synchronous_standby_names", value)
            target.clock.pause(1.0)

    return act


def reset(name: str) -> Act:
    """The parameter as before."""
    return lambda target: system(target, name, None)


EVERY_SESSION = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'walproof-ledger'
"""


def default(owner: str) -> Act:
    """synchronous_commit off by default for the ledger's role or database, in effect for every session of it."""
    alter = f"ALTER {owner} SET synchronous_commit = off"
    return lambda target: sql(target, alter, EVERY_SESSION)


def no_default(owner: str) -> Act:
    """As before."""
    return lambda target: sql(target, f"ALTER {owner} RESET synchronous_commit")


@dataclass
class Receiver:
    """A pg_receivewal that counts as a standby."""

    process: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def begin(self, target: LabTarget) -> None:
        """Names *, and a receiver that flushes."""
        folder = target.blueprint.home / "received"
        folder.mkdir(exist_ok=True)
        conninfo = target.endpoint("direct").client_conninfo(application_name="backup", dbname="")
        program = str(target.blueprint.postgres_bin / "pg_receivewal")
        argv = [program, "-d", conninfo, "-D", str(folder), "--synchronous"]
        self.process.append(subprocess.Popen(argv, stderr=subprocess.DEVNULL))
        names("*")(target)

    def end(self, _target: LabTarget) -> None:
        """It is gone."""
        for process in self.process:
            process.terminate()
            process.wait()


RECEIVER = Receiver()
LIES = {
    "no-kill": Lie("kill does nothing", instead=nothing),
    "kill-is-restart": Lie("kill is an orderly restart in place", instead=restart),
    "no-freeze": Lie("freeze does nothing", "freeze", instead=nothing),
    "short-freeze": Lie("a frozen leader is resumed at once", "freeze", instead=short_freeze),
    "no-isolate": Lie("isolate does nothing", "isolate", instead=nothing),
    "power-cut-is-kill": Lie("a power cut is a kill", "power-cut", instead=killed),
    "kill-member-is-kill": Lie("kill-member kills the postmaster alone", "kill-member", instead=killed),
    "no-switchover": Lie("a switchover does nothing", "switchover"),
    "trigger-sets-level": Lie("a trigger sets the level to off", begin=trigger(TO_OFF)),
    "deferred-trigger": Lie(
        "a deferred trigger sets the level after the row came back",
        begin=trigger(TO_OFF, kind="CONSTRAINT", when="AFTER", more="DEFERRABLE INITIALLY DEFERRED"),
    ),
    "trigger-drops-rows": Lie(
        "a trigger drops every tenth row",
        begin=trigger("IF new.number % 10 = 0 THEN RETURN NULL; END IF; RETURN new;"),
    ),
    "unlogged": Lie("the ledger is unlogged", begin=lambda t: sql(t, f"ALTER TABLE {LEDGER} SET UNLOGGED")),
    "row-security": Lie(
        "row security is on", begin=lambda t: sql(t, f"ALTER TABLE {LEDGER} ENABLE ROW LEVEL SECURITY")
    ),
    "names-emptied": Lie("standby names emptied", "none", begin=names("")),
    "names-reduced": Lie(
        "ANY 2 becomes ANY 1",
        "none",
        begin=names("ANY 2 (n1, n2, n3)", "ANY 1 (n1, n2, n3)"),
    ),
    "names-any": Lie("names * and a pg_receivewal", "none", begin=RECEIVER.begin, end=RECEIVER.end),
    "fsync-off": Lie("fsync off", begin=lambda t: system(t, "fsync", "off"), end=reset("fsync")),
    "full-page-writes-off": Lie(
        "full_page_writes off", begin=lambda t: system(t, "full_page_writes", "off"), end=reset("full_page_writes")
    ),
    "role-default": Lie(
        "a role's default is off, and a pooler drops what the client asked for",
        begin=default("ROLE postgres"),
        end=no_default("ROLE postgres"),
        pooled=True,
    ),
    "database-default": Lie(
        "the database's default is off, and a pooler drops what the client asked for",
        begin=default("DATABASE postgres"),
        end=no_default("DATABASE postgres"),
        pooled=True,
    ),
    "pooler-drops-options": Lie(
        "a pooler drops the level that the client asked for", "none", pooled=True, level=Level.REMOTE_APPLY
    ),
    "dead-writer": Lie("a writer is killed", kills_writer=True),
    "deleted-later": Lie(
        "rows are deleted before they are read",
        stopped=lambda t: sql(t, f"DELETE FROM {LEDGER} WHERE number % 100 = 3"),
    ),
}


@contextlib.contextmanager
def telling(target: LyingTarget) -> Iterator[None]:
    """The lie is undone and the ledger gone afterwards, and the lab healthy again.

    PgBouncer gives every client of a lie that needs it a session of its own meanwhile.
    """
    try:
        if target.lie.pooled:
            client_access.pool_command(target.blueprint, "SET pool_mode = 'session'")
        yield
    finally:
        if target.lie.pooled:
            client_access.pool_command(target.blueprint, "SET pool_mode = 'transaction'")
        wait_for(Wait.CLUSTER_HEALTHY, lambda: target.observe().healthy, target.clock)
        if target.lie.end:
            target.lie.end(target)
        sql(target, "DROP SCHEMA IF EXISTS walproof CASCADE")
        wait_for(Wait.CLUSTER_HEALTHY, lambda: bool(target.observe().standby_names), target.clock)


def told(blueprint: Blueprint, lie: Lie, number: int) -> Drill:
    """The drill of that number in which the lie is told."""
    target, fault = LyingTarget(blueprint, lie), CATALOGUE[lie.fault]
    with telling(target):
        return drilled(target, PlannedDrill(number, fault, fault.victims[0], lie.level, writers=8), seed=number)


def lies(names: tuple[str, ...] = ()) -> int:
    """Every lie, or those named, comes from a real cluster, and none may be called held.

    About eight minutes on two cores. Each lie is a fault that does something else, or SQL that voids what the level
    promises while the ledger runs. Exit code 1 when one is held, and when all of them together leave all undecided.
    """
    wanted, held, broken = chosen(names, LIES), 0, 0
    with benchmark_lab("lies", LabOrder(port=PORT, disk=Disk(kind="image"))) as blueprint:
        for number, name in enumerate(wanted, 1):
            drill = told(blueprint, LIES[name], number)
            fine = drill.verdict in (Verdict.BROKEN, Verdict.UNDECIDED)
            held += not fine
            broken += drill.verdict is Verdict.BROKEN
            print(f"{'caught' if fine else 'HELD'}: {name}: {drill.verdict}: {drill.why}", flush=True)
    print(f"{len(wanted) - held} of {len(wanted)} lies on a real lab were not called held, {broken} were called broken")
    return int(held > 0 or (not names and not broken))


@contextlib.contextmanager
def own_wall_clock() -> Iterator[Callable[[float], None]]:
    """A function that sets the wall clock so many seconds off, for this process and its children."""
    with tempfile.TemporaryDirectory(prefix="walproof-clock-") as folder, pytest.MonkeyPatch.context() as patch:
        offset = Path(folder) / "offset"
        offset.write_text("0", encoding="ascii")
        code = CLOCK.format(offset=str(offset))
        (Path(folder) / "sitecustomize.py").write_text(code, encoding="ascii")
        patch.setattr(time, "time", time.time)  # as it was, afterwards
        patch.syspath_prepend(folder)  # the ledger's processes get this path
        exec(compile(code, "sitecustomize", "exec"), {})
        yield lambda seconds: print(seconds, file=offset.open("w", encoding="ascii"))


def stepping(step: Callable[[float], None], early: float, late: float) -> Lie:
    """A kill with a step of the wall clock once the writers commit, another after the fault, and one back."""

    def instead(_blueprint: Blueprint, honest: MemberFault) -> Other:
        def act(member: str) -> None:
            honest.inject(member)
            step(late)

        return Other(act, honest.undo)

    return Lie("the wall clock steps", instead=instead, begin=lambda _: step(early), end=lambda _: step(0))


def clocks() -> int:
    """The wall clock steps by ±5 s in the middle of honest kills: the verdicts must be held all the same.

    About two minutes; exit code 1 when one is not held. What steps is time.time() of walproof and of every process that
    it starts for the ledger: the wall clock of the machine itself is left alone.
    """
    held = 0
    with own_wall_clock() as step, benchmark_lab("clocks", LabOrder(port=PORT)) as blueprint:
        for number, (early, late) in enumerate(STEPS, 1):
            drill = told(blueprint, stepping(step, early, late), number)
            held += drill.verdict is Verdict.HELD
            rto = "no RTO" if drill.rto_s is None else f"RTO {drill.rto_s:.1f} s"
            print(f"{early:+} s, then {late:+} s: {drill.verdict}: {drill.why} ({rto})", flush=True)
    print(f"{held} of {len(STEPS)} drills were held")
    return int(held < len(STEPS))


if __name__ == "__main__":
    command(lies, clocks)
