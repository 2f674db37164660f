"""Keeps an ordinary user's private namespaces alive, forwards the host's loopback ports into them, and enters them.

Run as `python -I -S namespace_keeper.py keep PIDFILE PORT=FD…` (by unshare), or `… enter PID -- ARGV…`.
Standard library only and single-threaded: setns(2) of a user namespace refuses a process with threads.
"""

import asyncio
import ctypes
import os
import socket
import subprocess
import sys
from pathlib import Path

INSIDE = "WALPROOF_INSIDE"
"""Environment variable of everything that runs inside: the keeper's pid."""
_CLONE_NEWNS, _CLONE_NEWNET, _CLONE_NEWUSER = 0x00020000, 0x40000000, 0x10000000
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 47, 2
_CAPABILITY_VERSION_3 = 0x20080522
_EMPTY_CHECKS = 8


def _checked(code: int, what: str) -> None:
    if code != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _keep_capabilities(libc: ctypes.CDLL) -> None:
    """Make every capability held here inheritable and ambient, so that it outlives exec (capabilities(7))."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)()
    _checked(libc.capget(header, data), "capget")
    for first in (0, 3):
        data[first + 2] = data[first + 1]
    _checked(libc.capset(header, data), "capset")
    for capability in range(int(Path("/proc/sys/kernel/cap_last_cap").read_text()) + 1):
        libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, capability, 0, 0)


def enter(pid: int, argv: list[str]) -> None:
    """Enter the namespaces of that process, capabilities and working folder kept, and execute argv."""
    libc = ctypes.CDLL(None, use_errno=True)
    here = os.getcwd()
    spaces = (("user", _CLONE_NEWUSER), ("net", _CLONE_NEWNET), ("mnt", _CLONE_NEWNS))
    opened = [(os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY), kind, name) for name, kind in spaces]
    for descriptor, kind, name in opened:
        _checked(libc.setns(descriptor, kind), f"setns {name}")
        os.close(descriptor)
    os.chdir(here)
    _keep_capabilities(libc)
    os.environ[INSIDE] = str(pid)
    os.execv(argv[0], argv)


def _others_inside() -> bool:
    own = os.stat("/proc/self/ns/user").st_ino
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if int(entry.name) != os.getpid() and (entry / "ns" / "user").stat().st_ino == own:
                return True
        except OSError:
            continue
    return False


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def _forward(port: int, descriptor: int) -> asyncio.Server:
    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_copy(reader, inner_writer), _copy(inner_reader, writer))

    return await asyncio.start_server(connect, sock=socket.socket(fileno=descriptor))


async def _serve(forwarded: dict[int, int]) -> None:
    """Forward the ports until no other process has been inside for a while."""
    servers = [await _forward(port, descriptor) for port, descriptor in forwarded.items()]
    empty = 0
    while empty < _EMPTY_CHECKS:
        await asyncio.sleep(0.5)
        empty = 0 if _others_inside() else empty + 1
    for server in servers:
        server.close()


def _identity() -> str:
    """This process for good, as machine/pid_files.py reads it: pid, start time, boot."""
    started = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19]
    return f"{os.getpid()} {started} {Path('/proc/sys/kernel/random/boot_id').read_text().strip()}"


def keep(pid_file: Path, forwarded: dict[int, int]) -> None:
    """Prepare the namespaces (a private /run for named ones, the loopback up), write pid_file, and serve."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "walproof", "/run"], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    new = pid_file.with_name(pid_file.name + ".new")
    new.write_text(_identity())
    new.replace(pid_file)
    try:
        asyncio.run(_serve(forwarded))
    finally:
        pid_file.unlink(missing_ok=True)


def main(arguments: list[str]) -> None:
    """`keep PIDFILE PORT=FD…` or `enter PID -- ARGV…`."""
    if arguments[0] == "enter":
        enter(int(arguments[1]), arguments[3:])
    pairs = [pair.split("=") for pair in arguments[2:]]
    keep(Path(arguments[1]), {int(port): int(descriptor) for port, descriptor in pairs})


if __name__ == "__main__":
    main(sys.argv[1:])
