"""Brings the outer factors of a price into force on the lab, verifies them, and puts back what it changed."""

from collections.abc import Callable

from walproof.errors import TargetTrouble, UsageTrouble
from walproof.lab import manager, wal_place, wiring
from walproof.lab.blueprint import Blueprint
from walproof.lab.faults import processors
from walproof.links.sites import matrix, read_regions
from walproof.model.guarantee import QuorumKind, SyncMode
from walproof.model.plan import Setting
from walproof.model.ports import Clock

TOLERANCE_MS = 2.0
"""How far a measured round trip may be from the one asked before the setting is refused."""


class LabSettings:
    """Remembers what it changed; each factor is touched only when it differs from what is in force."""

    def __init__(self, blueprint: Blueprint, clock: Clock) -> None:
        self._blueprint, self._clock = blueprint, clock
        self._now = Setting()
        self._undo: dict[str, Callable[[], object]] = {}

    def enter(self, setting: Setting) -> dict[str, float]:
        """Bring every factor into force; measured round trips in ms by "a-b", empty where no link is shaped."""
        blueprint, now = self._blueprint, self._now
        self._refuse_together(setting)
        if (setting.quorum, setting.quorum_kind) != (now.quorum, now.quorum_kind):
            self._quorum(setting)
        if setting.cores != now.cores:
            self._undo["cores"] = lambda: processors.limit(blueprint, None, blueprint.cores)
            processors.limit(blueprint, None, setting.cores or blueprint.cores)
        if (setting.fsync, setting.parameters) != (now.fsync, now.parameters):
            self._parameters(setting)
        if setting.wal_volume is not None:
            self._undo["wal"] = lambda: wal_place.place(blueprint, apart=blueprint.disk.wal_volume, clock=self._clock)
            wal_place.place(blueprint, apart=setting.wal_volume, clock=self._clock)
        measured = self._links(setting)
        self._now = setting
        return measured

    def leave(self) -> None:
        """Put back everything that was changed, links first: the rest waits for the cluster."""
        for name in ("links", "cores", "parameters", "quorum", "wal"):
            undo = self._undo.pop(name, None)
            if undo is not None:
                undo()
        self._now = Setting()

    @staticmethod
    def _refuse_together(setting: Setting) -> None:
        if setting.regions is not None and setting.rtt_ms is not None:
            raise UsageTrouble("regions and one round trip for all cannot both hold", "leave --rtt or --regions out")

    def _quorum(self, setting: Setting) -> None:
        blueprint = self._blueprint
        self._undo["quorum"] = lambda: manager.set_sync(blueprint, blueprint.sync, blueprint.quorum)
        if setting.quorum is None:
            manager.set_sync(blueprint, blueprint.sync, blueprint.quorum)
            return
        mode = SyncMode.ON if setting.quorum_kind is QuorumKind.FIRST else SyncMode.QUORUM
        manager.set_sync(blueprint, mode, setting.quorum)

    def _parameters(self, setting: Setting) -> None:
        asked: dict[str, str | None] = dict(setting.parameters)
        if setting.fsync is not None:
            asked["fsync"] = "on" if setting.fsync else "off"
        before = [name for name, _ in self._now.parameters] + (["fsync"] if self._now.fsync is not None else [])
        wanted: dict[str, str | None] = {**dict.fromkeys(before), **asked}
        manager.set_parameters(self._blueprint, wanted)
        back: dict[str, str | None] = dict.fromkeys(asked)
        self._undo["parameters"] = lambda: manager.set_parameters(self._blueprint, back) if back else None

    def _links(self, setting: Setting) -> dict[str, float]:
        blueprint, now = self._blueprint, self._now
        if (setting.rtt_ms, setting.regions) == (now.rtt_ms, now.regions):
            return wiring.round_trips_ms(blueprint) if setting.rtt_ms or setting.regions else {}
        before = dict(wiring.asked(blueprint).table)
        self._undo.setdefault("links", lambda: wiring.put(blueprint, before) if before else wiring.clear(blueprint))
        if setting.regions is not None:
            wiring.put(blueprint, matrix(read_regions(setting.regions), blueprint.members))
        elif setting.rtt_ms:
            wiring.set_round_trip(blueprint, setting.rtt_ms)
        else:
            wiring.clear(blueprint)
        if not (setting.rtt_ms or setting.regions):
            return {}
        measured = wiring.round_trips_ms(blueprint)
        if setting.rtt_ms and any(abs(ms - setting.rtt_ms) > TOLERANCE_MS for ms in measured.values()):
            # A busy machine may measure late once; the doubt "unverified link" stays with slices that run like this.
            measured = wiring.round_trips_ms(blueprint)
        if not measured:
            raise TargetTrouble("no link answers its probe", "walproof lab link; walproof lab heal")
        return measured
