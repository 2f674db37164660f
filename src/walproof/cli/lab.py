"""`walproof lab`: raise, look at, talk to and end the lab. Verbs of other rooms are loaded when called."""

import importlib
import os
import sys

import click
from rich.console import Console

from walproof.cli.lab_show import status_json, status_table
from walproof.errors import TargetError, UsageError
from walproof.lab import create, home, member_links, members, patroni
from walproof.lab.blueprint import Blueprint, Disk
from walproof.lab.design import LabOrder, design
from walproof.lab.observe import observe
from walproof.lab.parameters import read_parameters
from walproof.machine import programs
from walproof.machine.clock import RealClock
from walproof.model.guarantee import SyncMode
from walproof.model.units import size_bytes

ELSEWHERE = {
    "link": ("walproof.cli.lab_links", "Set or show the wire: round trip, loss, rate, cut."),
    "cut": ("walproof.cli.lab_links", "Cut a member from every other; clients still reach it."),
    "isolate": ("walproof.cli.lab_links", "Cut a member from everybody."),
    "heal": ("walproof.cli.lab_links", "Undo every fault and wait until the cluster is whole."),
    "fault": ("walproof.cli.lab_faults", "Break a member, or list what can be broken."),
    "disk": ("walproof.cli.lab_faults", "Make a disk slow, failing or full, or heal it."),
    "cpu": ("walproof.cli.lab_faults", "Limit a member's processors."),
}


class LabVerbs(click.Group):
    """The verbs here, then those of other files, which are loaded only when called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Own verbs first."""
        return [*self.commands, *ELSEWHERE]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a verb, None for an unknown one."""
        if cmd_name not in ELSEWHERE:
            return super().get_command(ctx, cmd_name)
        command = getattr(importlib.import_module(ELSEWHERE[cmd_name][0]), cmd_name)
        return command if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One line a verb, without loading any."""
        own = [(name, command.get_short_help_str(200)) for name, command in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl([*own, *((name, words) for name, (_, words) in ELSEWHERE.items())])


@click.group(cls=LabVerbs)
def lab() -> None:
    """A real cluster on this machine: PostgreSQL, Patroni and etcd in a namespace a member, HAProxy and PgBouncer."""


def _member(blueprint: Blueprint, name: str) -> str:
    if name not in blueprint.members:
        raise UsageError(f"{name!r} is not a member", f"the members are {', '.join(blueprint.members)}")
    return name


def _leader(blueprint: Blueprint) -> str:
    leader = observe(blueprint).leader
    if leader is None:
        raise TargetError("the lab has no leader just now", "walproof lab status")
    return leader


@lab.command()
@click.option("--members", "count", metavar="N", type=int, default=3, show_default=True, help="Members, 1 to 7.")
@click.option("--sync", type=click.Choice([m.value for m in SyncMode]), help="Synchronous mode.  [default: quorum]")
@click.option("--quorum", metavar="N", type=int, help="Standbys a commit waits for.  [default: 1]")
@click.option(
    "--param", "parameters", multiple=True, metavar="NAME=VALUE", help="A parameter of PostgreSQL; repeatable."
)
@click.option("--postgres", metavar="15|PATH", help="Another install.  [default: PostgreSQL 18 of the Python wheel]")
@click.option(
    "--port", metavar="PORT", type=int, default=5500, show_default=True, help="First of eight ports on 127.0.0.1."
)
@click.option(
    "--disk", type=click.Choice(["plain", "image"]), default="plain", show_default=True, help="Folders, or ext4 images."
)
@click.option("--disk-size", metavar="2GB", default="2GB", show_default=True, help="Size of each image.")
@click.option("--wal-volume", is_flag=True, help="WAL on an image of its own.")
@click.option("--cpu", type=float, metavar="CORES", help="Processors of each member, like 0.5.")
@click.option(
    "--timeouts",
    type=click.Choice(["fast", "default"]),
    default="fast",
    show_default=True,
    help="Of a fast failover, or as PostgreSQL and Patroni ship them.",
)
@click.option("--monitoring", is_flag=True, help="Prometheus and exporters too.")
def up(count: int, sync: str | None, quorum: int | None, **more: object) -> None:
    """Raise the lab; returns when every standby streams and counts."""
    order = LabOrder(
        members=count,
        sync=None if sync is None else SyncMode(sync),
        quorum=quorum,
        parameters=read_parameters(more["parameters"]),  # type: ignore[arg-type]
        postgres=more["postgres"],  # type: ignore[arg-type]
        port=int(str(more["port"])),
        disk=Disk(str(more["disk"]), size_bytes(str(more["disk_size"])), bool(more["wal_volume"])),
        cores=more["cpu"],  # type: ignore[arg-type]
        timeouts="default" if more["timeouts"] == "default" else "fast",
    )
    clock = RealClock()
    begun = clock.now()
    console = Console(stderr=True)
    monitored = None
    if more["monitoring"]:
        from walproof.watching.exporter import monitoring_of_labs

        monitored = monitoring_of_labs()
    blueprint = create.create_lab(
        design(order), clock, lambda line: console.print(f"[dim]{line}[/dim]"), monitored=monitored
    )
    view = observe(blueprint)
    click.echo(
        f"The lab {blueprint.name} is up after {clock.now() - begun:.1f} s: {len(blueprint.members)} members, "
        f"leader {view.leader}, synchronous_standby_names {view.standby_names or '(none)'}."
    )
    _say_ways(blueprint)


def _say_ways(blueprint: Blueprint) -> None:
    ports = blueprint.ports
    click.echo(
        f"  leader 127.0.0.1:{ports['leader']} (HAProxy), 127.0.0.1:{ports['pgbouncer']} (PgBouncer); "
        f"standbys 127.0.0.1:{ports['standby']}; user postgres, PGPASSFILE={blueprint.passfile}"
    )


@lab.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output, nothing else.")
def status(as_json: bool) -> None:
    """Members, roles, timelines, lag, and the standby names in effect."""
    blueprint = home.load()
    view = observe(blueprint)
    if as_json:
        click.echo(status_json(view, wire_dead=member_links.state(blueprint).dead))
        return
    status_table(view, Console())
    links = member_links.state(blueprint)
    if links.needed:
        click.secho(f"links: {links.summary}", fg="red" if links.dead else None)


@lab.command()
@click.argument("member", required=False)
@click.option("-c", "command", metavar="SQL", help="One command instead of a session.")
def psql(member: str | None, command: str | None) -> None:
    """psql on the leader, or on MEMBER."""
    blueprint = home.load()
    chosen = _member(blueprint, member) if member else _leader(blueprint)
    program = programs.client_program(blueprint.postgres_bin, "psql")
    way = blueprint.member_endpoint(chosen).conninfo()
    sys.stdout.flush()
    # In place of this process: Ctrl-C belongs to psql.
    os.execve(program, [str(program), way, *(["-X", "-c", command] if command else [])], {**os.environ})


@lab.command()
@click.argument("member")
@click.option("--lines", metavar="N", type=click.IntRange(1), default=50, show_default=True, help="Lines of each log.")
def logs(member: str, lines: int) -> None:
    """The last lines of every log of MEMBER; "access" for HAProxy and PgBouncer."""
    blueprint = home.load()
    name = member if member == "access" else _member(blueprint, member)
    click.echo(members.logs(blueprint, name, lines))


@lab.command()
def down() -> None:
    """End the lab, complete or left behind by a killed walproof; nothing of it stays."""
    name = home.lab_name()
    there = create.destroy_lab(name, RealClock())
    click.echo(f"The lab {name} is down." if there else f"No lab {name} is up; nothing to end.")


@lab.command()
@click.argument("member")
def restart(member: str) -> None:
    """Restart PostgreSQL of MEMBER through Patroni."""
    blueprint = home.load()
    patroni.restart(blueprint, _member(blueprint, member))
    click.echo(f"{member} was restarted.")


@lab.command()
@click.option("--to", metavar="MEMBER", help="The new leader.  [default: Patroni chooses]")
@click.option("--no-pause", is_flag=True, help="Do not hold clients in PgBouncer meanwhile.")
def switchover(to: str | None, no_pause: bool) -> None:
    """Hand the leadership over as planned; clients of PgBouncer are held meanwhile and lose no transaction."""
    from walproof.lab.switchover import switch_over

    blueprint = home.load()
    before = _leader(blueprint)
    if to is not None and _member(blueprint, to) == before:
        raise UsageError(f"{to} is the leader already", "walproof lab status")
    clock = RealClock()
    begun = clock.now()
    after = switch_over(blueprint, before, to, clock, hold=not no_pause)
    held = "not held" if no_pause else "held in PgBouncer meanwhile"
    click.echo(f"The leader is {after} (was {before}) after {clock.now() - begun:.1f} s; clients were {held}.")
