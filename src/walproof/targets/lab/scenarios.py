"""Outer factors of a price run on the lab: quorum, links, processors, parameters; entered, verified and reverted.

A factor that a setting leaves open is as it was before the first one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from walproof.errors import MachineError, UsageError
from walproof.lab import configuration, members, network_links, patroni
from walproof.lab.blueprint import Blueprint
from walproof.lab.patroni import wait_until_healthy
from walproof.links import devices
from walproof.links.round_trips import matrix, read_regions
from walproof.model.guarantee import QuorumKind
from walproof.model.ports import Clock
from walproof.model.sample import Scenario

_SYNC_KEYS = ("synchronous_mode", "synchronous_node_count", "synchronous_mode_strict")


@dataclass(frozen=True, slots=True)
class Factor:
    """One outer factor in effect: its value, and how to revert it."""

    value: object
    restore: Callable[[], object]


def wanted(scenario: Scenario) -> dict[str, object]:
    """The factors that a setting names, in the order in which they are entered.

    >>> wanted(Scenario(rtt_ms=3.0, fsync=False))
    {'parameters': (('fsync', 'off'),), 'links': ('rtt', 3.0)}
    """
    parameters = dict(scenario.parameters)
    if scenario.fsync is not None:
        parameters["fsync"] = "on" if scenario.fsync else "off"
    factors: dict[str, object] = {}
    if parameters:
        factors["parameters"] = tuple(sorted(parameters.items()))
    if scenario.quorum is not None:
        factors["quorum"] = (scenario.quorum_kind or QuorumKind.ANY, scenario.quorum, scenario.strict)
    if scenario.cores is not None:
        factors["cores"] = scenario.cores
    if scenario.regions is not None:
        factors["links"] = ("regions", scenario.regions)
    elif scenario.rtt_ms is not None:
        factors["links"] = ("rtt", scenario.rtt_ms)
    return factors


class LabScenarios:
    def __init__(self, blueprint: Blueprint, clock: Clock) -> None:
        self._blueprint = blueprint
        self._clock = clock
        self._entered: dict[str, Factor] = {}

    def enter(self, scenario: Scenario) -> dict[str, tuple[float, ...]]:
        """Bring the factors into effect, revert those no longer named; measured round trips in ms by "a-b"."""
        self.check(scenario)
        factors = wanted(scenario)
        for name in [n for n, f in self._entered.items() if factors.get(n) != f.value]:
            self._entered.pop(name).restore()
        acts = {"parameters": self.parameters, "quorum": self.quorum, "cores": self.cores, "links": self.links}
        for name, value in factors.items():
            if name not in self._entered:
                self._entered[name] = Factor(value, acts[name](value))
        if factors.keys() & {"quorum", "parameters"}:
            wait_until_healthy(self._blueprint, self._clock)
        return network_links.round_trips_ms(self._blueprint)

    def leave(self) -> None:
        for name in reversed(list(self._entered)):
            self._entered.pop(name).restore()

    def check(self, scenario: Scenario) -> None:
        standbys = len(self._blueprint.members) - 1
        if scenario.quorum is not None and not 0 <= scenario.quorum <= standbys:
            raise UsageError(f"a quorum of {scenario.quorum} needs as many standbys; there are {standbys}")
        if scenario.rtt_ms is not None and scenario.rtt_ms < 0:
            raise UsageError(f"a round trip of {scenario.rtt_ms:g} ms cannot be")
        if (scenario.rtt_ms or scenario.regions is not None) and (why_not := devices.why_no_tun()) is not None:
            raise MachineError(f"this lab can have no round trips: {why_not}", "walproof lab doctor")
        if scenario.regions is not None:
            matrix(read_regions(scenario.regions), self._blueprint.members)
        if scenario.cores is not None:
            members.check_cores(scenario.cores)
        if scenario.memory_mib is not None:
            raise UsageError("the memory of a lab's members is not limited", "leave --memory out")
        apart = self._blueprint.disk.wal_volume
        if scenario.wal_volume is not None and scenario.wal_volume != apart:
            where = "on its own volume" if apart else "with the data"
            raise UsageError(f"this lab keeps its WAL {where}", "walproof lab up --disk image --wal-volume")

    def parameters(self, value: Any) -> Callable[[], None]:
        """Set parameters cluster-wide; what reverts them."""
        inside = patroni.config(self._blueprint).get("postgresql", {}).get("parameters", {})
        before = {name: None if inside.get(name) is None else str(inside[name]) for name, _ in value}
        configuration.set_parameters(self._blueprint, dict(value))
        return lambda: configuration.set_parameters(self._blueprint, before)

    def quorum(self, value: Any) -> Callable[[], None]:
        """ANY k is Patroni's quorum mode, FIRST k its synchronous mode; strictness stays unless it is asked."""
        kind, k, strict = value
        config = patroni.config(self._blueprint)
        before = {key: config.get(key) for key in _SYNC_KEYS}
        mode = "off" if k == 0 else "quorum" if kind is QuorumKind.ANY else "on"
        asked = {} if strict is None else {"synchronous_mode_strict": strict}
        self._patch({"synchronous_mode": mode, "synchronous_node_count": max(1, k), **asked})
        return lambda: self._patch(before)

    def cores(self, value: Any) -> Callable[[], None]:
        """Limit every member's processors."""
        before = {member: members.cores_of(self._blueprint, member) for member in self._blueprint.members}
        members.limit_cores(self._blueprint, None, float(value))

        def restore() -> None:
            for member, cores in before.items():
                members.limit_cores(self._blueprint, member, cores)

        return restore

    def links(self, value: Any) -> Callable[[], object]:
        """The same round trip everywhere, or a region file's."""
        before = dict(network_links.configured(self._blueprint).settings)
        kind, what = value
        if kind == "regions":
            network_links.set_all(self._blueprint, matrix(read_regions(what), self._blueprint.members))
        else:
            network_links.set_round_trip(self._blueprint, float(what))
        return partial(network_links.set_all, self._blueprint, before)

    def _patch(self, change: dict[str, Any]) -> None:
        patroni.patch_config(self._blueprint, change)
        wait_until_healthy(self._blueprint, self._clock)
