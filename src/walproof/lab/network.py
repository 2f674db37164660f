"""The lab's network: a bridge with the host's address, a namespace and a veth pair for each member. Sets no delay."""

import os
import re
import socket
import subprocess
from contextlib import suppress

from walproof.errors import MachineError
from walproof.lab.blueprint import Blueprint
from walproof.links.namespaces import NAMESPACES, exists
from walproof.machine.commands import ip
from walproof.machine.programs import program

# No default route: nothing leaves the machine, and Patroni's lookup of its own name fails at once, not after 10 s.
_INSIDE = ("link set lo up", "link set eth0 up", "addr add {address}/24 dev eth0")
# The link emulator takes single routes over to its own device: packets may come in by another way than they went out.
_SYSCTL = """\
cd /proc/sys/net/ipv4/conf
for d in all default eth0; do echo 0 > $d/rp_filter; echo 1 > $d/accept_local; echo 0 > $d/send_redirects; done
echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6 2>/dev/null || true
"""


def build(blueprint: Blueprint) -> None:
    """Create bridge, namespaces and veth pairs; MachineError when the kernel refuses."""
    lines = [
        f"link add {blueprint.bridge} type bridge",
        f"addr add {blueprint.gateway}/24 dev {blueprint.bridge}",
        f"link set {blueprint.bridge} up",
    ]
    if os.geteuid() != 0:
        lines.insert(0, "link set lo up")
    for member in blueprint.members:
        space, veth = blueprint.namespace(member), blueprint.veth(member)
        lines += [
            f"netns add {space}",
            f"link add {veth} type veth peer name eth0 netns {space}",
            f"link set {veth} master {blueprint.bridge} up",
        ]
    ip(batch=lines)
    for member in blueprint.members:
        space = blueprint.namespace(member)
        ip(namespace=space, batch=(line.format(address=blueprint.address(member)) for line in _INSIDE))
        argv = [str(program("nsenter")), f"--net={NAMESPACES / space}", str(program("sh")), "-c", _SYSCTL]
        subprocess.run(argv, check=False, capture_output=True)


def remove(blueprint: Blueprint) -> None:
    """Remove whatever of the network there is; safe when there is none. MachineError names what stays."""
    present = devices()
    for name in (*map(blueprint.veth, blueprint.members), blueprint.bridge):
        if name in present:
            _delete("link", name)
    for member in blueprint.members:
        if exists(blueprint.namespace(member)):
            _delete("netns", blueprint.namespace(member))
    if left := leftovers({blueprint.number}):
        raise MachineError(f"the kernel does not remove {', '.join(left)}", "ip link; ip netns")


def _delete(kind: str, name: str) -> None:
    # Another process may be quicker; whatever is still there afterwards is reported by `remove`.
    with suppress(MachineError):
        ip(kind, "del", name)


def devices() -> set[str]:
    """Names of all network devices in this namespace."""
    # Not /sys/class/net: a mounted sysfs shows the namespace it was mounted in.
    return {name for _, name in socket.if_nameindex()}


def taken_numbers() -> set[int]:
    """Lab numbers whose bridge, namespaces or subnet exist on this machine already."""
    routes = ip("-4", "route", "show", "table", "all") + ip("-4", "addr", "show")
    return {number for _, number in _numbered()} | {int(n) for n in re.findall(r"\b10\.77\.(\d+)\.", routes)}


def leftovers(numbers: set[int]) -> list[str]:
    """Devices and namespaces of labs of these numbers that still exist."""
    return sorted(name for name, number in _numbered() if number in numbers)


def _numbered() -> list[tuple[str, int]]:
    """(name, lab number) of every device and namespace of any lab."""
    names = [*devices(), *(os.listdir(NAMESPACES) if NAMESPACES.is_dir() else ())]
    return [(name, int(match[1])) for name in names if (match := re.match(r"wp(\d+)(?:br|v|-)", name))]
