"""python -m tests.guard_simulation.traces LAB: what Patroni writes into a real lab's etcd, as JSON in traces/.

The lab is one of `walproof lab up --timeouts fast`, and is used up: members are killed. The writes are put in words by
which those of a real and of a simulated Patroni can be compared.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

import httpx2
import yaml

from walproof.guarding.etcd import Etcd3, EtcdAccess, decoded, encoded, prefix_end

NAMES = ("n1", "n2", "n3")
TRACES = Path(__file__).parent / "traces"
Events = list[tuple[str, str | None]]
"""Keys and what was written there; None for one that was removed."""


def _words(key: str, value: str | None) -> str:
    """ "" for a key that is not compared: optime, history, and the guard's own."""
    if key == "leader":
        return f"leader: {value or 'nobody'}"
    if key not in ("sync", "failover", "failsafe", "config") or value is None:
        return ""
    data = json.loads(value)
    match key:
        case "sync":
            return f"sync: {data['leader']} {data['quorum']} of {data['sync_standby'] or 'none'}"
        case "failover":
            return f"failover: {'asked' if data else 'done'}"
        case "failsafe":
            return f"failsafe: {','.join(sorted(data))}"
    return f"config: {'paused' if data.get('pause') else 'not paused'}"


def _state(value: str | None) -> str:
    """As far as both tell it: Patroni also writes promoted, demoted, starting, stopping on the way."""
    if value is None:
        return "gone"
    data = json.loads(value)
    if data["state"] != "running":
        return "stopped" if data["state"] == "stopped" else ""
    role = {"promoted": "primary"}.get(data["role"], data["role"])
    return f"{role}{', paused' if data.get('pause') else ''}"


def common(events: Events) -> list[str]:
    """The writes to keys that all share, in their order."""
    return [words for key, value in events if (words := _words(key, value))]


def of_members(events: Events, leader: str) -> dict[str, list[str]]:
    """What became of each member, by its own key; `leader` led at first."""
    found = {}
    for name in NAMES:
        states = ["primary" if name == leader else "replica", *(_state(v) for k, v in events if k == f"members/{name}")]
        found[name] = [state for state, _ in groupby(filter(None, states))][1:]
    return found


def renamed(lines: Iterable[str], names: dict[str, str]) -> list[str]:
    """The same with other names of members; lists of names in order again."""
    return [
        " ".join(",".join(sorted(names.get(n, n) for n in word.split(","))) for word in line.split(" "))
        for line in lines
    ]


class Lab:
    """A running lab: its etcd, its Patronis' REST, its faults."""

    def __init__(self, name: str) -> None:
        self.name, self.prefix = name, f"/service/{name}/"
        file = next(Path(f"/var/lib/walproof/{name}").glob("n*/patroni.yml"))
        self.settings: dict[str, Any] = yaml.safe_load(file.read_text())
        self.hosts: list[str] = self.settings["etcd3"]["hosts"]
        self.etcd = Etcd3(EtcdAccess(tuple(f"http://{host}" for host in self.hosts), timeout_s=2.0))

    def revision(self) -> int:
        """Of etcd now."""
        return int(self.etcd.call("/kv/range", {"key": encoded("x")})["header"]["revision"])

    def leader(self) -> str:
        """Who holds the leader key."""
        return self.etcd.prefix(self.prefix)["leader"].value

    def standby(self) -> str:
        """Who does not."""
        return next(n for n in NAMES if n != self.leader())

    def events(self, first: int, last: int) -> Events:
        """Every write of Patroni's keys from one revision to another, by a watch into the past."""
        wanted = {"key": encoded(self.prefix), "range_end": prefix_end(self.prefix), "start_revision": str(first)}
        found: Events = []
        with httpx2.stream("POST", f"{self.etcd.order.urls[0]}/v3/watch", json={"create_request": wanted}) as answer:
            for line in answer.iter_lines():
                for event in json.loads(line).get("result", {}).get("events", ()):
                    kv = event["kv"]
                    if int(kv["mod_revision"]) > last:
                        return found
                    value = None if event.get("type") == "DELETE" else decoded(kv.get("value", ""))
                    found.append((decoded(kv["key"]).removeprefix(self.prefix), value))
        return found

    def walproof(self, *words: str) -> None:
        """A command on the lab."""
        subprocess.run([sys.executable, "-m", "walproof", "lab", *words, "--lab", self.name], check=False)

    def lose(self, member: str, seconds: float) -> None:
        """Kill that member, and bring it back."""
        self.walproof("fault", "kill-member", member)
        time.sleep(seconds)
        self.walproof("fault", "clear")

    def pause(self) -> None:
        """Pause, and go on."""
        for pause in (True, None):
            rest = self.settings["restapi"]["authentication"]
            url = f"http://{self.hosts[0].split(':')[0]}:8008/config"
            httpx2.patch(url, json={"pause": pause}, auth=(rest["username"], rest["password"]), timeout=5)
            time.sleep(6)


SCENARIOS: dict[str, Callable[[Lab], None]] = {
    "normal": lambda _lab: None,
    "pause": Lab.pause,
    "standby-lost-and-back": lambda lab: lab.lose(lab.standby(), 8.0),
    "switchover": lambda lab: lab.walproof("switchover"),
    "leader-killed": lambda lab: lab.lose(lab.leader(), 30.0),
}


def main() -> None:
    """Record each."""
    lab = Lab(sys.argv[1])
    for name, act in SCENARIOS.items():
        leader, first = lab.leader(), lab.revision() + 1
        act(lab)
        time.sleep(12)
        # One more write ends the watch.
        last = lab.revision()
        lab.etcd.put(f"{lab.prefix}walproof_trace_ends", "", 0)
        events = lab.events(first, last)
        trace = {"leader": leader, "common": common(events), "members": of_members(events, leader)}
        (TRACES / f"{name}.json").write_text(json.dumps(trace, indent=1) + "\n")
        print(f"{name}: {len(events)} writes", flush=True)


if __name__ == "__main__":
    main()
