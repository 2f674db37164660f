"""`walproof lab up|status|down|ls|doctor` and `psql|logs|restart|switchover|cpu`: labs, their members, this machine."""

import os
import signal
import sys
from dataclasses import asdict
from typing import Any

import click
import cloup
from rich.table import Table
from rich.text import Text

from walproof.cli import options as opt
from walproof.cli.options import Command
from walproof.errors import Error, ExitCode, TargetError, UsageError
from walproof.lab import create, home, list_and_destroy, machine_probes, members, network_links, patroni, requirements
from walproof.lab.blueprint import Blueprint, Disk
from walproof.lab.client_access import switch_over
from walproof.lab.configuration import read_parameters
from walproof.lab.create import LabOrder, design
from walproof.lab.list_and_destroy import destroy_lab, destroy_unowned
from walproof.lab.patroni import observe
from walproof.lab.requirements import State, as_text
from walproof.load.local_runner import remove_left
from walproof.machine import programs
from walproof.machine.clock import RealClock
from walproof.machine.quoting import pasted
from walproof.model.units import counted, listed, size_bytes
from walproof.patroni.config import SyncMode
from walproof.reporting.console_output import (
    console,
    plain_table,
    print_json,
    print_result,
    print_status,
    print_step,
    print_tables,
    status_json,
    summary,
)


@cloup.command(cls=Command)
@opt.group(
    "Cluster",
    opt.option("--members count", "N", "Members, 1 to 7.", type=int, default=3),
    opt.choice("--sync", [m.value for m in SyncMode], "Synchronous mode.  [default: as --quorum needs, else quorum]"),
    opt.option("--quorum", "any1", "Standbys that confirm each commit: anyK, firstK or all.", type=opt.QUORUM),
    opt.choice("--timeouts", ["fast", "default"], "For a fast failover, or as the programs ship.", default="fast"),
    opt.flag("--monitoring", "Prometheus and exporters too."),
)
@opt.group(
    "PostgreSQL",
    opt.option("--param parameters", "NAME=VALUE", "A parameter of PostgreSQL; repeatable.", multiple=True),
    opt.postgres,
)
@opt.group(
    "Machine",
    opt.port,
    opt.choice("--disk", ["plain", "image"], "Folders, or ext4 images.", default="plain"),
    opt.option("--disk-size", "2GB", "Size of each image.", type=size_bytes, default="2GB"),
    opt.flag("--wal-volume", "WAL on an image of its own."),
    opt.option("--cpu", "CORES", "Processors of each member, like 0.5.", type=float),
)
@opt.of_a_lab
def up(lab: str | None, as_json: bool, **options: Any) -> None:
    """Create the lab; returns when every standby is streaming and synchronous."""
    order = LabOrder(
        name=lab or "",
        members=options["count"],
        sync=None if options["sync"] is None else SyncMode(options["sync"]),
        quorum=options["quorum"],
        parameters=read_parameters(options["parameters"]),
        postgres=options["postgres"],
        port=options["port"],
        disk=Disk(options["disk"], options["disk_size"], options["wal_volume"]),
        cores=options["cpu"],
        timeouts=options["timeouts"],
    )
    monitored = None
    if options["monitoring"]:
        from walproof.watching.exporter import monitoring_of_labs

        monitored = monitoring_of_labs()
    clock = RealClock()
    started = clock.now()
    blueprint = create.create_lab(design(order), clock, print_step, monitored=monitored)
    view, took_s = observe(blueprint), clock.now() - started
    ports, passfile = blueprint.ports, str(blueprint.passfile)
    connection = {"host": "127.0.0.1", "ports": ports, "user": "postgres", "passfile": passfile}
    print_result(
        {"lab": blueprint.name, "took_s": round(took_s, 1), **status_json(view), **connection},
        f"The lab {blueprint.name} is up after {took_s:.1f} s: {summary(view)}; "
        f"synchronous_standby_names {view.standby_names or '(none)'}.",
        f"  leader 127.0.0.1:{ports['leader']} (HAProxy), 127.0.0.1:{ports['pgbouncer']} (PgBouncer); "
        f"standbys 127.0.0.1:{ports['standby']}; user postgres, PGPASSFILE={passfile}",
        as_json=as_json,
    )


@cloup.command(cls=Command)
@opt.of_a_lab
def status(lab: str | None, as_json: bool) -> None:
    """Members, roles, timelines, lag, and the standby names in effect."""
    blueprint = home.load(lab)
    view, links = observe(blueprint), network_links.state(blueprint)
    if as_json:
        print_json({**status_json(view), **({"link_emulator": "dead"} if links.dead else {})})
        return
    screen = console()
    print_status(view, screen)
    if links.links.table:
        screen.print(f"links: {links.summary}", style="red" if links.dead else None)


@cloup.command(cls=Command)
@cloup.argument("name", required=False, shell_complete=opt.complete_labs)
@opt.flag("--all every", "Every lab of this state folder, and what killed commands left behind.")
@opt.words("--ended-on", "HOST,…", "Machines where every walproof has ended: a lab that was made there goes too.")
@opt.of_a_lab
def down(name: str | None, every: bool, ended_on: str | None, lab: str | None, as_json: bool) -> ExitCode:
    """Remove a lab, complete or left behind by a killed walproof; nothing of it stays."""
    hosts = frozenset(listed(ended_on, "ended-on") if ended_on else ())
    if (name and lab) or (every and (name or lab)):
        raise UsageError("give one of NAME, --lab and --all", "walproof lab down NAME, or --all")
    if every:
        return _down_all(hosts, as_json=as_json)
    name = name or lab or home.lab_name()
    existed = destroy_lab(name, RealClock(), hosts)
    others = [] if existed else [other.name for other in list_and_destroy.labs()]
    text = f"The lab {name} is down." if existed else f"No lab {name} is up; nothing to remove."
    hint = (f"  there are: {', '.join(others)} (walproof lab ls)",) if others else ()
    print_result({"lab": name, "existed": existed}, text, *hint, as_json=as_json)
    return ExitCode.HELD


def _down_all(ended_on: frozenset[str], *, as_json: bool) -> ExitCode:
    """Remove every lab but those whose command still runs; ENVIRONMENT when one stays."""
    remove_left()
    down: list[str] = []
    stay: dict[str, str] = {}
    for lab in list_and_destroy.labs():
        if lab.owner_pid:
            stay[lab.name] = pasted(
                "{state:comment}; end that, or walproof lab down {name:argument}", state=lab.state, name=lab.name
            )
            continue
        try:
            if destroy_unowned(lab.name, RealClock(), ended_on):
                down.append(lab.name)
        except Error as error:
            stay[lab.name] = error.message
    first = f"{counted(len(down), 'lab')} removed" + (
        f": {', '.join(down)}." if down else "; there was none to remove."
    )
    lines = [f"  {name} stays: {why}" for name, why in stay.items()]
    print_result({"removed": down, "stay": stay}, first, *lines, as_json=as_json)
    return ExitCode.ENVIRONMENT if stay else ExitCode.HELD


@cloup.command(cls=Command)
@opt.json_output
def ls(as_json: bool) -> None:
    """The labs of this state folder: who made each, whether it is up, in use or left behind."""
    labs = list_and_destroy.labs()
    if as_json:
        keys = ("name", "number", "state", "made_by", "owner_pid", "left_behind", "complete", "processes", "port")
        print_json({"labs": [{key: getattr(one, key) for key in keys} for one in labs]})
        return
    if not labs:
        print_result({}, f"No lab is in {home.state_folder()}.", as_json=False)
        return
    table = plain_table("name", "state", "made by", ">members", ">processes", ">port")
    for one in labs:
        port = "" if one.port is None else str(one.port)
        table.add_row(one.name, one.state, one.made_by, str(len(one.members)), str(one.processes), port)
    console().print(table)


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
    where["PGPASSFILE"] = str(blueprint.passfile)
    # Over these would go what is exported for another cluster.
    others = {"PGPASSWORD", "PGHOSTADDR", "PGSERVICE"}
    kept = {name: text for name, text in os.environ.items() if name not in others}
    sys.stdout.flush()
    # Python ignores it, and a program started in its place would, too.
    ignored = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        # In place of this process: Ctrl-C belongs to psql.
        os.execve(program, [str(program), *arguments], kept | where)
    finally:
        signal.signal(signal.SIGPIPE, ignored)


@cloup.command(cls=Command)
@opt.member()
@opt.option("--lines", "N", "Lines of each log.", type=click.IntRange(1), default=50)
@opt.of_a_lab
def logs(member: str, lines: int, lab: str | None, as_json: bool) -> None:
    """The last lines of every log of MEMBER; "access" for HAProxy and PgBouncer."""
    blueprint = home.load(lab)
    text = members.logs(blueprint, member if member == "access" else _known(blueprint, member), lines)
    print_result({"member": member, "logs": text}, *text.expandtabs().split("\n"), as_json=as_json)


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
        raise UsageError("--clear cannot be used with a number", "walproof lab cpu --clear")
    blueprint = home.load(lab)
    if clear:
        members.limit_cores(blueprint, None, None)
    elif cores is not None:
        members.limit_cores(blueprint, member, cores)
    limits = {name: members.cores_of(blueprint, name) for name in blueprint.members}
    text = ", ".join(f"{name} {_cores(limit)}" for name, limit in limits.items())
    print_result({"cores": limits}, text, as_json=as_json)


def _cores(limit: float | None) -> str:
    return "unlimited" if limit is None else f"{limit:g} core{'' if limit == 1 else 's'}"


_STYLE = {State.WORKS: "green", State.LIMITED: "yellow", State.BLOCKS: "bold red"}


@cloup.command(cls=Command)
@opt.port
@opt.flag("--raw", "What the probes printed, to go with a report of a fault.")
@opt.json_output
def doctor(port: int, raw: bool, as_json: bool) -> ExitCode:
    """What this machine offers a lab. Exit 3 when there can be none here."""
    if raw and as_json:
        raise UsageError("only one thing can go to standard output", "give --raw or --json")
    outputs = machine_probes.everything(port)
    rows = requirements.judged(outputs)
    possible, conclusion = not requirements.blocking(rows), requirements.conclusion(rows)
    if raw:
        click.echo(as_text(outputs), nl=False)
    elif as_json:
        print_json({"lab": possible, "conclusion": conclusion, "probes": [asdict(row) for row in rows]})
    else:
        print_tables(conclusion, [_table(rows)])
    return ExitCode.HELD if possible else ExitCode.ENVIRONMENT


def _table(rows: tuple[requirements.Row, ...]) -> Table:
    table = plain_table("", "", "found", "costs", "what to do")
    for row in rows:
        state = Text(row.state, _STYLE[row.state])
        table.add_row(row.subject, state, *map(Text, (row.found, row.costs, row.todo)))
    return table
