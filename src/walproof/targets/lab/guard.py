"""The lab's guard: its leader lock, its members' signs of life, and the guard as a process of the lab."""

import httpx2

from walproof.lab import home
from walproof.lab.blueprint import Blueprint
from walproof.lab.programs import etcd
from walproof.model.ports import Clock
from walproof.patroni.etcd3 import EtcdAccess
from walproof.targets.patroni.guard_process import GuardProcess
from walproof.targets.patroni.signs_of_life import Addresses
from walproof.targets.patroni.takeover import PatroniTakeover


def lab_takeover(blueprint: Blueprint, clock: Clock) -> PatroniTakeover:
    """What a guard needs of the lab."""
    return PatroniTakeover(
        EtcdAccess(tuple(f"http://{blueprint.address(m)}:{etcd.CLIENT_PORT}" for m in blueprint.members)),
        f"/service/{blueprint.name}/",
        lambda: {m: Addresses(blueprint.member_endpoint(m), blueprint.rest_url(m)) for m in blueprint.members},
        httpx2.Client(trust_env=False, follow_redirects=False),
        clock,
    )


def lab_guard(blueprint: Blueprint, clock: Clock) -> GuardProcess:
    """The guard of the lab as one of its processes: it ends with it."""
    return GuardProcess(
        blueprint.access_dir,
        blueprint.ports["guard"],
        ["--target", f"lab:{blueprint.name}"],
        clock,
        home.environment(blueprint, HOME=str(blueprint.home)),
    )
