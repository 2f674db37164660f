"""Keeps an ordinary user's private namespaces alive, lends the host's loopback ports into them, and lets others enter.

Runs as `python -S keeper.py keep PIDFILE PORT=FD…` (by unshare), or `python -S keeper.py enter PID -- ARGV…`.
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
_EMPTY_LOOKS = 8


def _checked(code: int, what: str) -> None:
    if code != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _keep_capabilities(libc: ctypes.CDLL) -> None:
    """Make every capability held here inheritable and ambient, so that it outlives exec (capabilities(7))."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)()
    _checked(libc.capget(header, data), "capget")
    for word in (0, 3):
        data[word + 2] = data[word + 1]
    _checked(libc.capset(header, data), "capset")
    for capability in range(int(Path("/proc/sys/kernel/cap_last_cap").read_text()) + 1):
        libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, capability, 0, 0)


def enter(pid: int, argv: list[str]) -> None:
    """Step into the namespaces of that process, capabilities and working folder kept, and become argv."""
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


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def _lend(port: int, descriptor: int) -> asyncio.Server:
    async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_pump(reader, back), _pump(there, writer))

    return await asyncio.start_server(lead, sock=socket.socket(fileno=descriptor))


async def _stay(lent: dict[int, int]) -> None:
    """Lend the ports until nobody else has been inside for a while."""
    servers = [await _lend(port, descriptor) for port, descriptor in lent.items()]
    empty = 0
    while empty < _EMPTY_LOOKS:
        await asyncio.sleep(0.5)
        empty = 0 if _others_inside() else empty + 1
    for server in servers:
        server.close()


def keep(pid_file: Path, lent: dict[int, int]) -> None:
    """Make the namespaces ready (a private /run for named ones, the loopback up), say so in pid_file, and stay."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "walproof", "/run"], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    new = pid_file.with_name(pid_file.name + ".new")
    new.write_text(str(os.getpid()))
    new.replace(pid_file)
    try:
        asyncio.run(_stay(lent))
    finally:
        pid_file.unlink(missing_ok=True)


def main(words: list[str]) -> None:
    """`keep PIDFILE PORT=FD…` or `enter PID -- ARGV…`."""
    if words[0] == "enter":
        enter(int(words[1]), words[3:])
    pairs = [word.split("=") for word in words[2:]]
    keep(Path(words[1]), {int(port): int(descriptor) for port, descriptor in pairs})


if __name__ == "__main__":
    main(sys.argv[1:])
