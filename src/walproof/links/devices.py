"""Network namespaces entered by a thread, and in each the link emulator's device and the routes over it.

Where there are no TUN devices, a sink takes its place: it loses what is routed to it, which is all that a cut needs.
Creates no namespace and carries no packet."""

import ctypes
import fcntl
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from walproof.errors import MachineError
from walproof.machine.programs import ip, run
from walproof.machine.quoting import pasted

NAMESPACES = Path("/run/netns")
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)  # os.setns came with Python 3.12 only


@contextmanager
def inside(namespace: str) -> Iterator[None]:
    """The calling thread is in that network namespace for the block; MachineError when it is missing or forbidden."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _enter(namespace)
        try:
            yield
        finally:
            _set(home)
    finally:
        os.close(home)


def exists(namespace: str) -> bool:
    return (NAMESPACES / namespace).exists()


def _enter(namespace: str) -> None:
    try:
        there = os.open(NAMESPACES / namespace, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as no:
        raise MachineError(
            f"the network namespace {namespace} is not there ({no.strerror})", "is the lab up? `walproof lab status`"
        ) from no
    try:
        _set(there)
    except OSError as no:
        raise MachineError(
            f"the network namespace {namespace} may not be entered ({no.strerror})",
            "run as the user who started the lab, or as root",
        ) from no
    finally:
        os.close(there)


def _set(fd: int) -> None:
    if _libc.setns(fd, _CLONE_NEWNET) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


DEVICE = "wire0"
SINK = "cut0"
LOSING = "lost0"
"""The device of a routing table of its own, for packets that rules choose: routes to SINK come and go with cuts."""
HEADER_BYTES = 10
"""struct virtio_net_hdr before every packet (linux/virtio_net.h): it lets 64 KB segments through as one packet."""
QUEUE_PACKETS = 4000
_TUN = "/dev/net/tun"
_TUN_HINT = pasted("load the tun module, or as root: chmod 666 {device:path}", device=_TUN)
_TUNSETIFF, _TUNSETPERSIST, _TUNSETOWNER, _TUNSETOFFLOAD = 0x400454CA, 0x400454CB, 0x400454CC, 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_F_CSUM, _F_TSO4, _F_TSO6 = 0x01, 0x02, 0x04


def bridge_port(device: str, *, forwarding: bool) -> None:
    """Let a port of a bridge forward frames, or drop them silently in both directions while its carrier stays."""
    # linux/if_bridge.h: disabled 0, forwarding 3. `ip link … bridge_slave state 0` is accepted and does nothing.
    run(["bridge", "link", "set", "dev", device, "state", "3" if forwarding else "0"])


def why_no_tun() -> str | None:
    """Why the link emulator can have no device here, one clause with what to do; None where it can."""
    try:
        os.close(os.open(_TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as no:
        return f"{_TUN} cannot be opened here ({no.strerror}): {_TUN_HINT}"
    return None


def create(namespace: str) -> None:
    """Create the device there, up and persistent, and let packets arrive by another path than answers leave.

    Persistent, so that packets are lost when the link emulator dies instead of taking the kernel's own path again.
    """
    _remove(namespace, SINK)
    os.close(attach(namespace, persist=True))
    _accept_other_paths(namespace, DEVICE)
    # The same 1500 as eth0: the segment size of a connection fits both paths, so it may switch while it lives.
    ip("link", "set", DEVICE, "mtu", "1500", "txqueuelen", str(QUEUE_PACKETS), "up", namespace=namespace)


def attach(namespace: str, *, persist: bool = False) -> int:
    """A non-blocking descriptor of the device in that namespace, created when missing; MachineError says why not."""
    request = struct.pack("16sH22x", DEVICE.encode(), _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR)
    with inside(namespace):
        try:
            fd = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as no:
            raise MachineError(
                f"the link emulator needs {_TUN}, which cannot be opened here ({no.strerror})", _TUN_HINT
            ) from no
        try:
            fcntl.ioctl(fd, _TUNSETIFF, request)
            if persist:
                fcntl.ioctl(fd, _TUNSETOWNER, os.geteuid())  # a device without one is anyone's who is in the namespace
                fcntl.ioctl(fd, _TUNSETPERSIST, 1)
        except OSError as no:
            os.close(fd)
            raise MachineError(
                f"the link emulator may not have its device in namespace {namespace} ({no.strerror})",
                "it needs CAP_NET_ADMIN there: run as root, or as the user who started the lab",
            ) from no
    return fd


def offload(fd: int, *, whole: bool) -> None:
    """Let TCP hand over segments of up to 64 KB as one packet (`whole`), or packets as eth0 would carry them."""
    fcntl.ioctl(fd, _TUNSETOFFLOAD, _F_CSUM | (_F_TSO4 | _F_TSO6 if whole else 0))


def _accept_other_paths(namespace: str, device: str) -> None:
    with inside(namespace):
        for knob, value in (
            ("ipv4/conf/all/rp_filter", "0"),
            ("ipv4/conf/eth0/rp_filter", "0"),
            (f"ipv4/conf/{device}/rp_filter", "0"),
            (f"ipv6/conf/{device}/disable_ipv6", "1"),
        ):
            path = Path("/proc/sys/net") / knob
            if path.exists() and path.read_text().strip() != value:
                path.write_text(value)


def route(namespace: str, address: str, over: Iterable[str], *, device: str = DEVICE) -> None:
    """Send what goes from `address` to the addresses `over` by that device, everything else as before.

    Established connections keep both their addresses, so they stay.
    """
    wanted = set(over)
    if not wanted and not there(namespace, device):
        return
    present = ip("-4", "-o", "route", "show", "dev", device, namespace=namespace)
    routed = {line.split()[0].removesuffix("/32") for line in present.splitlines() if line.strip()}
    lines = [f"route replace {a}/32 dev {device} src {address} metric 5" for a in sorted(wanted - routed)]
    lines += [f"route del {a}/32 dev {device}" for a in sorted(routed - wanted)]
    if lines:
        ip(namespace=namespace, batch=lines)


def sink(namespace: str, address: str, over: Iterable[str]) -> None:
    """Lose, in silence, what goes from `address` to the addresses `over`; without any, no sink stays.

    A bridge without ports and without ARP: a blackhole route would tell the sender, which no partition does, and the
    dummy driver is not in every kernel, while a lab has bridges anyway.
    """
    wanted = tuple(over)
    _remove(namespace, DEVICE)
    if not wanted:
        _remove(namespace, SINK)
        return
    _have_losing(namespace, SINK)
    route(namespace, address, wanted, device=SINK)


def lose_by_table(namespace: str, address: str, table: str) -> None:
    """Lose, in silence, what goes from `address` by that routing table; the rules that use it are the caller's."""
    _have_losing(namespace, LOSING)
    ip("route", "replace", "default", "dev", LOSING, "src", address, "table", table, namespace=namespace)


def _have_losing(namespace: str, device: str) -> None:
    if not there(namespace, device):
        ip("link", "add", device, "type", "bridge", namespace=namespace)
    # Also where it is there: a kill may have left it half made.
    _accept_other_paths(namespace, device)
    ip("link", "set", device, "arp", "off", "mtu", "1500", "up", namespace=namespace)


def delete(namespace: str) -> None:
    """Remove the devices, and with them their routes; safe when none is there."""
    for device in (DEVICE, SINK, LOSING):
        _remove(namespace, device)


def there(namespace: str, device: str) -> bool:
    """Whether that namespace has it."""
    with inside(namespace):
        return Path(f"/proc/sys/net/ipv4/conf/{device}").exists()


def _remove(namespace: str, device: str) -> None:
    if there(namespace, device):
        ip("link", "del", device, namespace=namespace)
