"""`walproof lab up|status|down|ls`: labs created, shown, removed, listed."""

from typing import Any

import cloup
from rich.table import Table

from walproof.cli import options as opt
from walproof.cli.cluster_status import print_status, status_json, summary
from walproof.cli.console import console, print_json, print_result, print_step
from walproof.cli.groups import Command
from walproof.errors import Error, UsageError
from walproof.lab import create, home, inventory, member_links
from walproof.lab.blueprint import Disk
from walproof.lab.design import LabOrder, design
from walproof.lab.destroy import destroy_lab, destroy_unowned
from walproof.lab.observe import observe
from walproof.lab.parameters import read_parameters
from walproof.load.work_directory import remove_left
from walproof.machine.clock import RealClock
from walproof.model.units import counted, size_bytes
from walproof.patroni.config import SyncMode


@cloup.command(cls=Command)
@opt.group(
    "Cluster",
    opt.option("--members count", "N", "Members, 1 to 7.", type=int, default=3),
    opt.choice("--sync", [m.value for m in SyncMode], "Synchronous mode.  [default: quorum]"),
    opt.option("--quorum", "N", "Standbys that confirm each commit.  [default: 1]", type=int),
    opt.choice("--timeouts", ["fast", "default"], "For a fast failover, or as the programs ship.", default="fast"),
    opt.flag("--monitoring", "Prometheus and exporters too."),
    opt.flag("--guard", "A guard too: recovery in seconds (walproof guard)."),
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
    if options["guard"]:
        from walproof.targets.choose import choose

        print_step("starting the guard")
        guard = choose(f"lab:{blueprint.name}").capabilities().guard
        assert guard is not None
        guard.start()
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
    view, links = observe(blueprint), member_links.state(blueprint)
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
@opt.of_a_lab
def down(name: str | None, every: bool, lab: str | None, as_json: bool) -> int:
    """Remove a lab, complete or left behind by a killed walproof; nothing of it stays."""
    if (name and lab) or (every and (name or lab)):
        raise UsageError("more than one lab is meant", "walproof lab down NAME, or --all")
    if every:
        return _down_all(as_json=as_json)
    name = name or lab or home.lab_name()
    existed = destroy_lab(name, RealClock())
    others = [] if existed else [found.name for found in inventory.labs()]
    text = f"The lab {name} is down." if existed else f"No lab {name} is up; nothing to remove."
    hint = (f"  there are: {', '.join(others)} (walproof lab ls)",) if others else ()
    print_result({"lab": name, "existed": existed}, text, *hint, as_json=as_json)
    return 0


def _down_all(*, as_json: bool) -> int:
    """Remove every lab but those whose command still runs; exit 3 when one stays."""
    remove_left()
    down: list[str] = []
    stay: dict[str, str] = {}
    for found in inventory.labs():
        if found.owner_pid:
            stay[found.name] = f"{found.state}; end that, or walproof lab down {found.name}"
            continue
        try:
            if destroy_unowned(found.name, RealClock()):
                down.append(found.name)
        except Error as error:
            stay[found.name] = error.message
    first = f"{counted(len(down), 'lab')} removed" + (
        f": {', '.join(down)}." if down else "; there was none to remove."
    )
    lines = [f"  {name} stays: {why}" for name, why in stay.items()]
    print_result({"removed": down, "stay": stay}, first, *lines, as_json=as_json)
    return 3 if stay else 0


@cloup.command(cls=Command)
@opt.json_output
def ls(as_json: bool) -> None:
    """The labs of this state folder: who made each, whether it is up, in use or left behind."""
    found = inventory.labs()
    if as_json:
        keys = ("name", "number", "state", "made_by", "owner_pid", "left_behind", "complete", "processes", "port")
        print_json({"labs": [{key: getattr(one, key) for key in keys} for one in found]})
        return
    if not found:
        print_result({}, f"No lab is in {home.state_folder()}.", as_json=False)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("name", "state", "made by", "members", "processes", "port"):
        table.add_column(heading, justify="right" if heading in {"members", "processes", "port"} else "left")
    for one in found:
        port = "" if one.port is None else str(one.port)
        table.add_row(one.name, one.state, one.made_by, str(len(one.members)), str(one.processes), port)
    console().print(table)
