"""Blueprint → the files of every member and of the access layer. Writes files; starts nothing."""

import json
from typing import Any

from walproof.errors import MachineError
from walproof.lab import home
from walproof.lab.blueprint import Blueprint
from walproof.lab.privileges import make_folder, make_log, member_uid, write_private
from walproof.lab.programs import etcd, haproxy, patroni, pgbouncer, postgres
from walproof.machine.programs import program


def lab_parameters(blueprint: Blueprint) -> dict[str, str]:
    """PostgreSQL's parameters as the lab sets them by itself, overridden by `--param`."""
    defaults = postgres.parameters(len(blueprint.members), fast_timeouts=blueprint.fast_timeouts)
    return {**defaults, **blueprint.parameters}


def dynamic_config(blueprint: Blueprint) -> dict[str, Any]:
    """Patroni's configuration in the DCS when the lab is created."""
    parameters = lab_parameters(blueprint)
    return patroni.dynamic(blueprint.sync, blueprint.quorum, parameters, fast_timeouts=blueprint.fast_timeouts)


def _patroni_settings(blueprint: Blueprint, member: str, passwords: dict[str, str]) -> patroni.PatroniSettings:
    others = [m for m in blueprint.members if m != member]
    return patroni.PatroniSettings(
        scope=blueprint.name,
        name=member,
        address=blueprint.address(member),
        etcd_hosts=tuple(f"{blueprint.address(m)}:{etcd.CLIENT_PORT}" for m in (member, *others)),
        data_dir=blueprint.data_dir(member),
        bin_dir=blueprint.postgres_bin,
        passfile=blueprint.run_dir(member) / "pgpass",
        subnet=blueprint.subnet,
        passwords=passwords,
        dynamic=dynamic_config(blueprint),
        wal_dir=blueprint.wal_dir(member),
        durable_bootstrap=blueprint.disk.kind == "image",
    )


def _etcd_settings(blueprint: Blueprint, member: str) -> etcd.EtcdSettings:
    return etcd.EtcdSettings(
        name=member,
        addresses={m: blueprint.address(m) for m in blueprint.members},
        data_dir=blueprint.member_dir(member) / "etcd",
        token=blueprint.name,
    )


def write_member(blueprint: Blueprint, member: str) -> None:
    """Folders and files of one member: what its init process starts, and Patroni's configuration."""
    folder = blueprint.member_dir(member)
    owner = member_uid(blueprint.number)
    make_folder(folder, 0o711)
    wal = blueprint.wal_dir(member)
    for theirs in (folder / "etcd", blueprint.run_dir(member), blueprint.data_dir(member).parent, wal and wal.parent):
        if theirs is not None:
            make_folder(theirs, owner=owner)
    config = folder / "patroni.yml"
    text = patroni.config_text(_patroni_settings(blueprint, member, home.read_secrets(blueprint)))
    write_private(config, text, reader=owner)
    programs = [
        {
            "name": "etcd",
            "argv": etcd.argv(_etcd_settings(blueprint, member), program("etcd")),
            "log": "etcd.log",
        },
        {
            "name": "patroni",
            "argv": patroni.argv(config),
            "log": "patroni.log",
            "await": etcd.health_url(blueprint.address(member)),
        },
    ]
    for name in ("etcd", "patroni"):
        make_log(folder / f"{name}.log", owner)
    write_private(folder / "member.json", json.dumps(programs, indent=1), reader=owner)


def pgbouncer_version(output: str) -> tuple[int, int]:
    """(1, 18) of "PgBouncer 1.18.0"; MachineError when it cannot be parsed."""
    try:
        major, minor = output.split()[1].split(".")[:2]
        return int(major), int(minor)
    except (IndexError, ValueError):
        raise MachineError(f"pgbouncer --version prints {output!r}") from None


def write_access(blueprint: Blueprint, version: tuple[int, int]) -> None:
    """Folder and files of HAProxy and PgBouncer."""
    folder = blueprint.access_dir
    owner = member_uid(blueprint.number)
    make_folder(folder, 0o711)
    make_folder(blueprint.access_run_dir, owner=owner)
    ports = blueprint.ports
    write_private(
        folder / "haproxy.cfg",
        haproxy.config_text(
            haproxy.HaproxySettings(
                addresses={m: blueprint.address(m) for m in blueprint.members},
                leader_port=ports["leader"],
                standby_port=ports["standby"],
                stats_port=ports["haproxy-stats"],
                socket=blueprint.access_run_dir / "haproxy.sock",
                fast_timeouts=blueprint.fast_timeouts,
            )
        ),
        reader=owner,
    )
    passwords = home.read_secrets(blueprint)
    write_private(folder / "users.txt", pgbouncer.users_text({"postgres": passwords["postgres"]}), reader=owner)
    settings = pgbouncer.PgbouncerSettings(
        port=ports["pgbouncer"],
        leader_port=ports["leader"],
        auth_file=folder / "users.txt",
        version=version,
        fast_timeouts=blueprint.fast_timeouts,
    )
    write_private(folder / "pgbouncer.ini", pgbouncer.config_text(settings), reader=owner)
