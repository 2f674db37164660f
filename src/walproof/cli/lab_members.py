"""`walproof lab psql|logs|restart|switchover|cpu`: what is done with members of the lab."""

import os
import sys

import click
import cloup

from walproof.cli import options as opt
from walproof.cli.console import print_result
from walproof.cli.groups import Command
from walproof.errors import TargetError, UsageError
from walproof.lab import cpu_limits, home, members, patroni
from walproof.lab.blueprint import Blueprint
from walproof.lab.observe import observe
from walproof.lab.switchover import switch_over
from walproof.machine import programs
from walproof.machine.clock import RealClock


def _known(blueprint: Blueprint, name: str) -> str:
    if name not in blueprint.members:
        raise UsageError(f"{name!r} is not a member", f"the members are {', '.join(blueprint.members)}")
    return name


def _leader(blueprint: Blueprint) -> str:
    leader = observe(blueprint).leader
    if leader is None:
        raise TargetError("the lab has no leader just now", "walproof lab status")
    return leader


@cloup.command(cls=Command, context_settings={"ignore_unknown_options": True, "help_option_names": ["--help"]})
@cloup.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[PSQL ARGUMENTS]…")
@opt.option("--member", "MEMBER", "On which member.  [default: the leader]")
@opt.lab
def psql(arguments: tuple[str, ...], member: str | None, lab: str | None) -> None:
    """psql on the leader or a member; everything else is passed on to psql."""
    blueprint = home.load(lab)
    chosen = _known(blueprint, member) if member else _leader(blueprint)
    program = programs.client_program(blueprint.postgres_bin, "psql")
    endpoint = blueprint.member_endpoint(chosen)
    host, port = endpoint.hosts[0]
    # In the environment, not as arguments: psql's own -d and -U then replace database and user alone.
    where = {"PGHOST": host, "PGPORT": str(port), "PGDATABASE": endpoint.database, "PGUSER": endpoint.user}
    sys.stdout.flush()
    # In place of this process: Ctrl-C belongs to psql.
    os.execve(program, [str(program), *arguments], {**os.environ, **where, "PGPASSFILE": str(blueprint.passfile)})


@cloup.command(cls=Command)
@opt.member()
@opt.option("--lines", "N", "Lines of each log.", type=click.IntRange(1), default=50)
@opt.of_a_lab
def logs(member: str, lines: int, lab: str | None, as_json: bool) -> None:
    """The last lines of every log of MEMBER; "access" for HAProxy and PgBouncer."""
    blueprint = home.load(lab)
    text = members.logs(blueprint, member if member == "access" else _known(blueprint, member), lines)
    print_result({"member": member, "logs": text}, text, as_json=as_json)


@cloup.command(cls=Command)
@opt.member()
@opt.of_a_lab
def restart(member: str, lab: str | None, as_json: bool) -> None:
    """Restart PostgreSQL of MEMBER through Patroni."""
    blueprint = home.load(lab)
    patroni.restart(blueprint, _known(blueprint, member))
    print_result({"member": member, "restarted": True}, f"PostgreSQL of {member} was restarted.", as_json=as_json)


@cloup.command(cls=Command)
@opt.option("--to", "MEMBER", "The new leader.  [default: Patroni chooses]")
@opt.flag("--no-pause", "Do not hold clients in PgBouncer meanwhile.")
@opt.of_a_lab
def switchover(to: str | None, no_pause: bool, lab: str | None, as_json: bool) -> None:
    """A planned switchover; clients of PgBouncer are held meanwhile and lose no transaction."""
    blueprint = home.load(lab)
    before = _leader(blueprint)
    if to is not None and _known(blueprint, to) == before:
        raise UsageError(f"{to} is the leader already", "walproof lab status")
    clock = RealClock()
    started = clock.now()
    after = switch_over(blueprint, before, to, clock, hold=not no_pause)
    took_s = clock.now() - started
    held = "not held" if no_pause else "held in PgBouncer meanwhile"
    print_result(
        {"leader": after, "leader_before": before, "took_s": round(took_s, 1), "held": not no_pause},
        f"The leader is {after} (was {before}) after {took_s:.1f} s; clients were {held}.",
        as_json=as_json,
    )


@cloup.command(cls=Command)
@cloup.argument("cores", required=False, type=float)
@opt.member(required=False)
@opt.flag("--clear", "Remove every limit.")
@opt.of_a_lab
def cpu(cores: float | None, member: str | None, clear: bool, lab: str | None, as_json: bool) -> None:
    """Limit every member, or one, to that many cores while it runs; without arguments, show the limits in effect."""
    if clear and cores is not None:
        raise UsageError("--clear removes every limit and needs no number", "walproof lab cpu --clear")
    blueprint = home.load(lab)
    if clear:
        cpu_limits.limit(blueprint, None, None)
    elif cores is not None:
        cpu_limits.limit(blueprint, member, cores)
    limits = {name: cpu_limits.cores_of(blueprint, name) for name in blueprint.members}
    text = ", ".join(f"{name} {_cores(limit)}" for name, limit in limits.items())
    print_result({"cores": limits}, text, as_json=as_json)


def _cores(limit: float | None) -> str:
    return "unlimited" if limit is None else f"{limit:g} core{'' if limit == 1 else 's'}"
