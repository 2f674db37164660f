"""What links do against how they are configured. Needs root, touches no lab.

`python -m benchmarks.link_emulator [--json]`; --lab prices commits on the lab that is up (WALPROOF_LAB).
"""

import json
import os
import random
import select
import socket
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psycopg
from rich.console import Console
from rich.table import Table

from benchmarks.command import command
from tests.fixtures.bare_network import bare_network, may_create_networks
from walproof.errors import ExitCode
from walproof.lab import network_links
from walproof.lab.blueprint import Blueprint
from walproof.lab.home import load
from walproof.links import control
from walproof.links.devices import inside
from walproof.links.round_trips import Measured, Probing, losses, round_trips
from walproof.links.settings import Change

Row = tuple[str, str, str, bool]
"""What was configured, what was measured, the bound, whether it is met."""


def delays(lab: Blueprint, probes: int) -> list[Row]:
    """Round trips of 0, 3, 10, 50 ms: median within 0.6 ms, p99 within 2 ms."""
    rows = []
    for rtt_ms in (0, 3, 10, 50):
        network_links.set_round_trip(lab, rtt_ms)
        back = round_trips(network_links.nodes_of(lab), [("n1", "n2")], Probing(round_trips=probes, pace_s=0.005))
        found = Measured("n1", "n2", back["n1", "n2"], probes)
        median, p99 = found.median_ms or float("inf"), found.quantile_ms(0.99) or float("inf")
        good = abs(median - rtt_ms) <= 0.6 and p99 <= rtt_ms + 2
        rows.append((f"round trip {rtt_ms} ms", f"median {median:.2f}, p99 {p99:.2f} ms", "± 0.6, + 2 ms", good))
    return rows


def loss(lab: Blueprint, packets: int) -> Row:
    """Loss of 1 %: 0.7 to 1.3 % of the packets one way."""
    network_links.reset(lab)
    network_links.shape(lab, [("n1", "n2")], Change(loss=0.01))
    found = losses(network_links.nodes_of(lab), [("n1", "n2")], Probing(one_way=packets, pace_s=0.01))["n1", "n2"]
    return ("loss 1 %", f"{found:.2%} of {packets}", "0.7–1.3 %", 0.007 <= found <= 0.013)


def rate(lab: Blueprint, seconds: float) -> Row:
    """Rate of 100 Mbit/s: within 10 %."""
    network_links.reset(lab)
    network_links.shape(lab, [("n1", "n2")], Change(rate_bps=100e6))
    found = stream(lab, seconds)[0]
    return ("rate 100 Mbit/s", f"{found / 1e6:.1f} Mbit/s", "± 10 %", abs(found - 100e6) <= 10e6)


def throughput(lab: Blueprint, seconds: float) -> list[Row]:
    """One TCP connection at 10 ms: at least 1 Gbit/s; and the processor time of each Gbit."""
    network_links.reset(lab)
    network_links.set_round_trip(lab, 10)
    found, cost = stream(lab, seconds)
    return [
        ("one TCP connection at 10 ms", f"{found / 1e9:.2f} Gbit/s", "≥ 1 Gbit/s", found >= 1e9),
        ("the emulator's cost of 1 Gbit/s", f"{cost / (found / 1e9):.3f} of a processor", "–", True),
    ]


def packet_cost(lab: Blueprint, seconds: float) -> Row:
    """The emulator's processor time at small packets, per 10,000 of them a second."""
    network_links.set_round_trip(lab, 10)
    before, started = _status(lab), time.monotonic()
    count = int(seconds * 5000)
    losses(network_links.nodes_of(lab), [("n1", "n2")], Probing(one_way=count, pace_s=0.02))
    after, took = _status(lab), time.monotonic() - started
    passed = after.offered - before.offered
    used = (after.processor_s - before.processor_s) / took
    per = used / (passed / took / 10_000)
    return ("the emulator's cost of 10,000 packets/s", f"{per:.3f} of a processor ({passed / took:.0f}/s)", "–", True)


def commits(lab: Blueprint, pairs: int) -> Row:
    """On a real lab at 10 ms, one client: `on` is slower than `local` by 10 to 11.5 ms per commit, medians of pairs."""
    before = network_links.configured(lab)
    network_links.set_round_trip(lab, 10)
    took: dict[str, list[float]] = {"on": [], "local": []}
    try:
        with psycopg.connect(lab.endpoint("multi-host").client_conninfo(), autocommit=True) as link:
            link.execute("CREATE TABLE IF NOT EXISTS link_benchmark (n bigint)")
            for n in range(pairs):
                for level in random.sample(list(took), 2):
                    link.execute(f"SET synchronous_commit = {level}")
                    started = time.monotonic()
                    link.execute("INSERT INTO link_benchmark VALUES (%s)", (n,))
                    took[level].append((time.monotonic() - started) * 1e3)
            link.execute("DROP TABLE link_benchmark")
    finally:
        network_links.set_all(lab, before.table)
    on, local = statistics.median(took["on"]), statistics.median(took["local"])
    words = f"{on:.2f} − {local:.2f} = {on - local:.2f} ms, {pairs} pairs"
    return ("price of `on` at 10 ms", words, "10–11.5 ms", 10 <= on - local <= 11.5)


def stream(lab: Blueprint, seconds: float) -> tuple[float, float]:
    """Bits per second of one TCP connection n1 → n2, and the share of a processor the emulator took meanwhile."""
    with inside(lab.namespace("n2")):
        listening = socket.create_server((lab.address("n2"), 0))
    with inside(lab.namespace("n1")):
        sending = socket.create_connection(listening.getsockname())
    receiving, _ = listening.accept()
    ended = threading.Event()
    writer = threading.Thread(target=_pour, args=(sending, ended), daemon=True)
    writer.start()
    with listening, receiving:
        _drain(receiving, 1.0)  # slow start is not the link
        before, started = _status(lab), time.monotonic()
        got = _drain(receiving, seconds)
        after, took = _status(lab), time.monotonic() - started
        ended.set()
    writer.join()
    sending.close()
    return got * 8 / took, (after.processor_s - before.processor_s) / took


def _pour(sending: socket.socket, ended: threading.Event) -> None:
    block = bytes(1 << 18)
    sending.settimeout(1.0)
    try:
        while not ended.is_set():
            sending.send(block)
    except OSError:
        return


def _drain(receiving: socket.socket, seconds: float) -> int:
    got, until, block = 0, time.monotonic() + seconds, bytearray(1 << 18)
    while (left := until - time.monotonic()) > 0:
        if select.select([receiving], [], [], left)[0]:
            got += receiving.recv_into(block)
    return got


def _status(lab: Blueprint) -> control.Status:
    now = control.status(lab.home / "wire")
    if now is None:
        raise SystemExit("the link emulator is dead")
    return now


def main(
    *, seconds: float = 4.0, probes: int = 1000, packets: int = 10_000, lab: bool = False, json: bool = False
) -> int:
    """Print configured and measured; exit code 1 when a bound is missed, 3 without the privilege.

    --seconds of each stream, --probes of each delay, --packets of the loss.
    """
    if lab:
        rows = [commits(load(), 300)]
    elif not may_create_networks():
        print("benchmarks.link_emulator: needs root and /dev/net/tun", file=sys.stderr)
        return ExitCode.ENVIRONMENT
    else:
        with tempfile.TemporaryDirectory() as folder, bare_network(Path(folder) / "lab") as bare:
            try:
                rows = [*delays(bare, probes), loss(bare, packets), rate(bare, seconds)]
                rows += [*throughput(bare, seconds), packet_cost(bare, seconds)]
            finally:
                network_links.end_emulator(bare)
    _print(rows, as_json=json)
    return 0 if all(good for *_, good in rows) else 1


def _print(rows: list[Row], *, as_json: bool) -> None:
    if as_json:
        data: dict[str, Any] = {"processors": os.cpu_count(), "load": os.getloadavg()[0]}
        data["rows"] = [dict(zip(("configured", "measured", "bound", "held"), row, strict=True)) for row in rows]
        print(json.dumps(data))
        return
    table = Table("configured", "measured", "bound", "", box=None, pad_edge=False)
    for what, found, bound, good in rows:
        table.add_row(what, found, bound, "" if bound == "–" else "held" if good else "MISSED")
    Console().print(table)


if __name__ == "__main__":
    command(main)
