"""python -m tests.guard_simulation.record_traces LAB: what Patroni writes into a real lab's etcd, as JSON in traces/.

The lab is one of `walproof lab up --timeouts fast`, and is used up: members are killed.
"""

import base64
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import yaml

from tests.guard_simulation.writes import common, of_members

NAMES = ("n1", "n2", "n3")
TRACES = Path(__file__).parent / "traces"


class Lab:
    """A running lab: its etcd, its Patronis' REST, its faults."""

    def __init__(self, name: str) -> None:
        self.name = name
        file = next(Path(f"/var/lib/walproof/{name}").glob("n*/patroni.yml"))
        self.settings: dict[str, Any] = yaml.safe_load(file.read_text())
        hosts: list[str] = self.settings["etcd3"]["hosts"]
        self.etcd = [f"http://{host}" for host in hosts]
        self.prefix = f"/service/{name}/"

    def ask(self, method: str, fields: dict[str, Any]) -> dict[str, Any]:
        """One request to the first member of etcd that answers."""
        for url in self.etcd:
            try:
                return dict(httpx2.post(f"{url}/v3{method}", json=fields, timeout=2).json())
            except (httpx2.HTTPError, OSError):
                continue
        raise SystemExit("no member of etcd answers")

    def revision(self) -> int:
        """Of etcd now."""
        return int(self.ask("/kv/range", {"key": _encoded("x")})["header"]["revision"])

    def value(self, key: str) -> str:
        """Of a key below the prefix."""
        kvs = self.ask("/kv/range", {"key": _encoded(self.prefix + key)}).get("kvs", [])
        return base64.b64decode(kvs[0]["value"]).decode() if kvs else ""

    def events(self, first: int, last: int) -> list[tuple[str, str | None]]:
        """Every write of Patroni's keys from one revision to another, by a watch into the past."""
        key, end = _encoded(self.prefix), _encoded(self.prefix[:-1] + "0")
        request = {"create_request": {"key": key, "range_end": end, "start_revision": str(first)}}
        found: list[tuple[str, str | None]] = []
        for url in self.etcd:
            try:
                with httpx2.stream("POST", f"{url}/v3/watch", json=request, timeout=2) as answer:
                    for line in answer.iter_lines():
                        for event in json.loads(line).get("result", {}).get("events", ()):
                            kv = event["kv"]
                            if int(kv["mod_revision"]) > last:
                                return found
                            name = base64.b64decode(kv["key"]).decode().removeprefix(self.prefix)
                            gone = event.get("type") == "DELETE"
                            found.append((name, None if gone else base64.b64decode(kv.get("value", "")).decode()))
            except (httpx2.HTTPError, OSError):
                if found:
                    return found
        return found

    def walproof(self, *words: str) -> None:
        """A command on the lab."""
        subprocess.run([sys.executable, "-m", "walproof", "lab", *words, "--lab", self.name], check=False)

    def configure(self, change: dict[str, Any]) -> None:
        """PATCH /config of a member that answers."""
        rest = self.settings["restapi"]["authentication"]
        for host in self.settings["etcd3"]["hosts"]:
            url = f"http://{host.split(':')[0]}:8008/config"
            try:
                httpx2.patch(url, json=change, auth=(rest["username"], rest["password"]), timeout=5)
                return
            except (httpx2.HTTPError, OSError):
                continue


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _standby(lab: Lab) -> str:
    return next(n for n in NAMES if n != lab.value("leader"))


def _lost_and_back(member: Callable[[Lab], str], seconds: float) -> Callable[[Lab], None]:
    def act(lab: Lab) -> None:
        lab.walproof("fault", "kill-member", member(lab))
        time.sleep(seconds)
        lab.walproof("fault", "clear")
        time.sleep(10)

    return act


def _paused(lab: Lab) -> None:
    lab.configure({"pause": True})
    time.sleep(6)
    lab.configure({"pause": None})
    time.sleep(6)


def _switchover(lab: Lab) -> None:
    lab.walproof("switchover")
    time.sleep(12)


SCENARIOS: dict[str, Callable[[Lab], None]] = {
    "normal": lambda _lab: time.sleep(6),
    "pause": _paused,
    "standby lost and back": _lost_and_back(_standby, 8.0),
    "switchover": _switchover,
    "leader killed": _lost_and_back(lambda lab: lab.value("leader"), 30.0),
}


def main() -> None:
    """Record each."""
    lab = Lab(sys.argv[1])
    for name, act in SCENARIOS.items():
        leader, first = lab.value("leader"), lab.revision() + 1
        act(lab)
        events = lab.events(first, lab.revision())
        trace = {"leader": leader, "common": common(events), "members": of_members(events, leader)}
        file = TRACES / f"{name.replace(' ', '-')}.json"
        file.write_text(json.dumps(trace, indent=1) + "\n")
        print(f"{name}: {len(events)} writes", flush=True)


if __name__ == "__main__":
    main()
