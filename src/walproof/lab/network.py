"""The lab's network: a bridge with the host's address, a namespace and a cable for each member. Shapes nothing."""

import os
import re
import socket
import subprocess
from pathlib import Path

from walproof.errors import MachineError
from walproof.lab.blueprint import Blueprint
from walproof.machine.software import program

NAMESPACES = Path("/run/netns")
# No default route: nothing leaves the machine, and Patroni's look-up of its own name fails at once, not after 10 s.
_INSIDE = """\
link set lo up
link set eth0 up
addr add {address}/24 dev eth0
"""
# The wire takes single routes over to its own device, so packets may come in another way than they went out.
_SYSCTL = """\
cd /proc/sys/net/ipv4/conf
for d in all default eth0; do echo 0 > $d/rp_filter; echo 1 > $d/accept_local; echo 0 > $d/send_redirects; done
echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6 2>/dev/null || true
"""


def _ip(*arguments: str, script: str | None = None) -> str:
    batch = ("-batch", "-") if script is not None else ()
    said = subprocess.run(
        [program("ip"), *arguments, *batch], input=script, capture_output=True, text=True, check=False
    )
    if said.returncode != 0:
        raise MachineError(f"the network could not be made: {said.stderr.strip()}", "run as root, see walproof lab up")
    return said.stdout


def build(blueprint: Blueprint) -> None:
    """Make bridge, namespaces and cables; MachineError when the kernel refuses."""
    lines = [
        f"link add {blueprint.bridge} type bridge",
        f"addr add {blueprint.gateway}/24 dev {blueprint.bridge}",
        f"link set {blueprint.bridge} up",
    ]
    if os.geteuid() != 0:
        lines.insert(0, "link set lo up")
    for member in blueprint.members:
        space, cable = blueprint.namespace(member), blueprint.veth(member)
        lines += [
            f"netns add {space}",
            f"link add {cable} type veth peer name eth0 netns {space}",
            f"link set {cable} master {blueprint.bridge} up",
        ]
    _ip(script="\n".join(lines) + "\n")
    for member in blueprint.members:
        space = blueprint.namespace(member)
        _ip("-n", space, script=_INSIDE.format(address=blueprint.address(member)))
        subprocess.run(
            [program("nsenter"), f"--net={NAMESPACES / space}", "sh", "-c", _SYSCTL], check=False, capture_output=True
        )


def remove(blueprint: Blueprint) -> None:
    """Remove whatever of the network there is; safe when there is none."""
    present = links()
    for name in (*map(blueprint.veth, blueprint.members), blueprint.bridge):
        if name in present:
            subprocess.run([program("ip"), "link", "del", name], check=False, capture_output=True)
    for member in blueprint.members:
        if (NAMESPACES / blueprint.namespace(member)).exists():
            subprocess.run(
                [program("ip"), "netns", "del", blueprint.namespace(member)], check=False, capture_output=True
            )


def links() -> set[str]:
    """Names of all network devices in this namespace."""
    # Not /sys/class/net: a mounted sysfs shows the namespace it was mounted in.
    return {name for _, name in socket.if_nameindex()}


def taken_numbers() -> set[int]:
    """Lab numbers whose bridge, namespaces or subnet exist on this machine already."""
    names = [*links(), *(os.listdir(NAMESPACES) if NAMESPACES.is_dir() else ())]
    found = {int(match[1]) for name in names if (match := re.match(r"wp(\d+)(?:br|v|-)", name))}
    routes = _ip("-4", "route", "show", "table", "all") + _ip("-4", "addr", "show")
    return found | {int(number) for number in re.findall(r"\b10\.77\.(\d+)\.", routes)}


def leftovers(numbers: set[int]) -> list[str]:
    """Devices and namespaces of labs of these numbers that still exist."""
    names = [*links(), *(os.listdir(NAMESPACES) if NAMESPACES.is_dir() else ())]
    return sorted(n for n in names if (match := re.match(r"wp(\d+)(?:br|v|-)", n)) and int(match[1]) in numbers)
