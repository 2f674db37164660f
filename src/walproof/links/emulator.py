"""The link emulator's process: reads packets from members' devices, holds each until due, writes it to the receiver's.

`python -m walproof.links.emulator CONFIG`. When a packet is due, or lost, is pure (Channel). It sets no routes and
chooses no delays; it ends when CONFIG is removed."""

import ctypes
import errno
import gc
import heapq
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from walproof.errors import Error
from walproof.links.devices import HEADER_BYTES, attach, exists, offload
from walproof.links.settings import LinkSetting

QUEUE_S = 0.1
"""A rate-limited direction queues this much and then drops the newest, as a router's tail-drop queue does."""


@dataclass(slots=True)
class Channel:
    """One direction of a link: its setting, and how long it is still busy with earlier packets.

    Packets never overtake one another, even with jitter: it models a queue of changing length, because reordered
    segments would make TCP retransmit, which a real link does not. Jitter is uniform in ±jitter_s and never makes a
    packet due before it came.
    """

    setting: LinkSetting
    rng: Random
    busy_until: float = 0.0
    last_due: float = 0.0
    offered: int = 0
    lost: int = 0
    """Packets lost by the configured loss."""
    refused: int = 0
    """Packets lost to a cut or to a full queue."""
    held: int = 0
    """Bytes in flight."""

    def due(self, now: float, size: int) -> float | None:
        """Time in seconds at which a packet of `size` bytes that arrived `now` is due; None when it is lost."""
        setting = self.setting
        self.offered += 1
        if setting.cut:
            self.refused += 1
            return None
        if setting.loss and self.rng.random() < setting.loss:
            self.lost += 1
            return None
        sent = now
        if setting.rate_bps is not None:
            start = self.busy_until if self.busy_until > now else now
            if start - now > QUEUE_S:
                self.refused += 1
                return None
            sent = self.busy_until = start + size * 8 / setting.rate_bps
        due = sent + setting.delay_s
        if setting.jitter_s:
            due = max(due + self.rng.uniform(-setting.jitter_s, setting.jitter_s), sent)
        due = max(due, self.last_due)
        self.last_due = due
        return due


BATCH = 64
LARGEST = HEADER_BYTES + 65535 + 1
CHECK_LAB_S = 1.0
"""How often it checks whether its lab is still there."""
MOST_BYTES = 64 << 20
"""A direction holds this much in flight and then drops the newest: a member that floods it fills no memory."""
REPLY_BYTES = 1 << 18
# Source and destination, side by side in the IPv4 header (RFC 791): eight bytes that name a direction.
KEY = slice(HEADER_BYTES + 12, HEADER_BYTES + 20)
_PR_SET_TIMERSLACK = 29
LONGEST_LEAD_S = 200e-6
REST_S = 200e-6
"""After work it lets packets gather this long: half the wake-ups, and the processor goes to PostgreSQL instead."""
AT_ONCE_S = 20e-6
"""Waiting for packets no longer than this means that they were there already."""
LONG_S = 1e-3
"""Where some direction's delay is shorter, it never rests: the rest would show."""


class LinkEmulator:
    """Every device, every direction, and the packets in flight. One thread: no lock, no hand-over, no second copy."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.seed = int(config["seed"])
        self.fds = {d["address"]: attach(d["namespace"]) for d in config["devices"]}
        self.ends = {socket.inet_aton(address): fd for address, fd in self.fds.items()}
        self.channels: dict[bytes, Channel] = {}
        self.in_flight: list[tuple[float, int, int, bytes, Channel | None]] = []
        self.count = 0
        self.lead = 0.0
        self.rest = 0.0
        self.control = _listen(config["control"])
        self.connections: set[socket.socket] = set()
        self.ended = False

    def set_table(self, rows: list[list[Any]]) -> None:
        """Take over a whole table [[source, destination, setting], …]; unchanged directions keep their counters."""
        new: dict[bytes, Channel] = {}
        lossy = set()
        for source, destination, values in rows:
            setting = LinkSetting(**values)
            key = socket.inet_aton(source) + socket.inet_aton(destination)
            old = self.channels.get(key)
            rng = Random(f"{self.seed} {source} {destination}")
            new[key] = old if old is not None and old.setting == setting else Channel(setting, rng)
            if setting.loss and not setting.cut:
                lossy.add(source)
        for address, fd in self.fds.items():
            # A lost packet must be one packet, not the 64 KB that segmentation offload hands over at once.
            offload(fd, whole=address not in lossy)
        self.channels = new
        shortest = min((channel.setting.delay_s for channel in new.values() if not channel.setting.cut), default=0.0)
        self.rest = REST_S if shortest >= LONG_S else 0.0
        cut = {key for key, channel in new.items() if channel.setting.cut}
        if cut:
            self.in_flight = [entry for entry in self.in_flight if entry[3][KEY] not in cut]
            heapq.heapify(self.in_flight)

    def run(self) -> None:
        """Carry packets until asked to end or until the lab is removed."""
        listening = self.control.fileno()
        devices = list(self.fds.values())
        check_at = time.monotonic() + CHECK_LAB_S
        rested = False
        while not self.ended and self.fds:
            now = time.monotonic()
            wake = self.in_flight[0][0] - self.lead if self.in_flight else check_at
            pause = wake - now if wake > now else 0.0
            watched: list[int | socket.socket] = [*devices, listening, *self.connections]
            ready = select.select(watched, [], [], pause)[0]
            came = time.monotonic()
            if not ready and self.in_flight and pause:
                self._learn(came - wake)
            # What came during the rest came, on average, in the middle of it.
            stamp = came - self.rest / 2 if rested and came - now < AT_ONCE_S else came
            for one in ready:
                if isinstance(one, socket.socket):
                    self._answer(one)
                elif one == listening:
                    self._accept()
                else:
                    self._receive(one, stamp)
            self._send_due()
            rested = bool(ready) and self.rest > 0.0
            if rested:
                time.sleep(self.rest)
            if came >= check_at:
                check_at = came + CHECK_LAB_S
                self._check_lab()
                devices = list(self.fds.values())

    def _learn(self, late: float) -> None:
        # A sleeping process wakes some 50 µs late, here for a packet that is due and before for the same one when it
        # came: sending it twice that sooner meets the configured delay on average.
        self.lead += (min(2 * late, LONGEST_LEAD_S) - self.lead) / 16

    def _receive(self, fd: int, now: float) -> None:
        """Read what waits in one device and came `now`, up to a batch, so that no member starves another."""
        read, push, channels, ends, in_flight = os.read, heapq.heappush, self.channels, self.ends, self.in_flight
        for _ in range(BATCH):
            try:
                packet = read(fd, LARGEST)
            except BlockingIOError:
                return
            except OSError as no:
                if no.errno == errno.EBADFD:
                    self._close(fd)
                return
            key = packet[KEY]
            end = ends.get(key[4:])
            if end is None:
                continue
            channel = channels.get(key)
            due = now if channel is None else channel.due(now, len(packet) - HEADER_BYTES)
            if due is None:
                continue
            if channel is not None:
                if channel.held >= MOST_BYTES:
                    channel.refused += 1
                    continue
                channel.held += len(packet)
            self.count += 1
            push(in_flight, (due, self.count, end, packet, channel))

    def _send_due(self) -> None:
        """Write out everything due by now."""
        in_flight, pop, write = self.in_flight, heapq.heappop, os.write
        now = time.monotonic() + self.lead + self.rest / 2
        while in_flight and in_flight[0][0] <= now:
            _, _, fd, packet, channel = pop(in_flight)
            if channel is not None:
                channel.held -= len(packet)
            try:
                write(fd, packet)
            except OSError:
                continue  # the receiver's device is gone, or full: lost, as on a real link

    def _close(self, fd: int) -> None:
        self.fds = {address: other for address, other in self.fds.items() if other != fd}
        self.ends = {address: other for address, other in self.ends.items() if other != fd}
        os.close(fd)

    def _check_lab(self) -> None:
        if not Path(self.config["path"]).exists():
            self.ended = True
        for device in self.config["devices"]:
            if device["address"] in self.fds and not exists(device["namespace"]):
                # The open device would keep a removed namespace alive.
                self._close(self.fds[device["address"]])

    def _accept(self) -> None:
        try:
            connection, _ = self.control.accept()
        except OSError:
            return
        connection.setblocking(False)
        self.connections.add(connection)

    def _answer(self, connection: socket.socket) -> None:
        self.connections.discard(connection)
        with connection:
            try:
                request = json.loads(connection.recv(REPLY_BYTES))
                connection.send(json.dumps(self.reply(request)).encode())
            except (OSError, ValueError, KeyError, TypeError):
                return

    def reply(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Do what the control socket requests: set, status or end; the status is the answer to each."""
        if request["do"] == "set":
            self.set_table(request["table"])
        elif request["do"] == "end":
            self.ended = True
        return {
            "pid": os.getpid(),
            "real_time": os.sched_getscheduler(0) == os.SCHED_RR,
            "processor_s": time.process_time(),
            "offered": sum(channel.offered for channel in self.channels.values()),
        }


def _listen(path: str) -> socket.socket:
    Path(path).unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    before = os.umask(0o177)
    try:
        listening.bind(path)
    finally:
        os.umask(before)
    listening.listen(16)
    listening.setblocking(False)
    return listening


def _raise_priority() -> None:
    """Request real-time scheduling, or at least a higher priority; both are refused to ordinary users."""
    # Without it the kernel may end every sleep 50 µs late (prctl(2)); real-time processes have no such slack anyway.
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(5))
    except OSError:
        try:
            os.setpriority(os.PRIO_PROCESS, 0, -15)
        except OSError:
            return


def main() -> int:
    """Carry packets as the config file says, until the lab is removed or SIGTERM; ENVIRONMENT when it cannot start."""
    path = Path(sys.argv[1])
    config = {**json.loads(path.read_text()), "path": str(path)}
    try:
        emulator = LinkEmulator(config)
        emulator.set_table(config["table"])
    except Error as error:
        print(f"{error.message}\n{error.hint}", file=sys.stderr)
        return error.exit_code
    signal.signal(signal.SIGTERM, lambda *_: setattr(emulator, "ended", True))
    _raise_priority()
    # Nothing here makes cycles, and a collection in the middle is a pause in every connection.
    gc.collect()
    gc.freeze()
    gc.disable()
    emulator.run()
    Path(config["control"]).unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
