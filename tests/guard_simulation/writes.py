"""What Patroni writes into etcd, a real one or a simulated one, in words that the two can be compared by."""

import json
from collections.abc import Iterable, Iterator


def _words(key: str, value: str | None) -> str:
    """ "" for a key that is not compared: optime, history, and the guard's own."""
    name = key.removeprefix("members/")
    if name != key:
        return f"member {name}: {_state(value)}"
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


def common(events: Iterable[tuple[str, str | None]]) -> list[str]:
    """The writes to keys that all share, in their order."""
    words = (_words(key, value) for key, value in events if not key.startswith("members/"))
    return [w for w in words if w]


def of_members(events: Iterable[tuple[str, str | None]], leader: str) -> dict[str, list[str]]:
    """What became of each member, by its own key; `leader` led at first."""
    known, found = list(events), {}
    for name in ("n1", "n2", "n3"):
        first = "primary" if name == leader else "replica"
        found[name] = list(_changes((_state(v) for k, v in known if k == f"members/{name}"), first))
    return found


def _changes(states: Iterable[str], before: str) -> Iterator[str]:
    for state in states:
        if state and state != before:
            before = state
            yield state


def renamed(lines: Iterable[str], names: dict[str, str]) -> list[str]:
    """The same with other names of members; lists of names in order again."""
    found = []
    for line in lines:
        words = [",".join(sorted(names.get(n, n) for n in word.split(","))) for word in line.split(" ")]
        found.append(" ".join(words))
    return found
