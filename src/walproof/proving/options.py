"""The options of `walproof prove`: the values as typed are parsed once, here, or refused with one sentence. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from walproof.errors import UsageError
from walproof.load.workload_options import parse_workload
from walproof.model.drill import Victim
from walproof.model.guarantee import Level, level
from walproof.model.sample import Arm
from walproof.model.units import duration_s, listed, parse_positive_int, share
from walproof.proving.fault_steps import Fault
from walproof.proving.faults import CATALOGUE, fault, victim
from walproof.proving.loss_bounds import COLUMNS

RawOptions = Mapping[str, Any]
"""Option name → value as typed, flag, or None when not given."""
QUICK_S = 600.0
"""`--matrix --quick` starts no drill after so many seconds: the longest one still ends within twelve minutes."""


@dataclass(frozen=True, slots=True)
class ProveOptions:
    """What `walproof prove` was asked. `storm`: number of storms, 0 none, each of `storm_faults` faults.

    `shrink`: how many storms may be tried to find the fewest faults that still break.
    """

    faults: tuple[Fault, ...]
    levels: tuple[Level, ...]
    victim: Victim | None = None
    route: str = "multi-host"
    writers: int = 16
    repeat: int = 1
    until_bound: float | None = None
    storm: int = 0
    storm_faults: int = 4
    shrink: int = 8
    seed: int = 1
    matrix: bool = False
    budget_s: float | None = None
    """No drill starts after so much time."""
    client_timeout_s: float = 3.0
    own_load: Arm | None = None
    """A workload to run beside the writers, at each drill's own level and route."""
    salvage: bool = False
    return_orders: tuple[tuple[str, ...], ...] = ((),)
    """Each drill once for every order in which members come back; () for all at once."""

    @property
    def load(self) -> dict[str, Any]:
        """The fields of a PlannedDrill that are the same for every drill."""
        return {"route": self.route, "writers": self.writers, "client_timeout_s": self.client_timeout_s}


def parse_options(raw: RawOptions) -> ProveOptions:
    """The options as values; UsageError for the first that is not valid or contradicts another.

    >>> options = parse_options({"fault": "kill,partition", "levels": "off,on", "repeat": "3"})
    >>> [f.name for f in options.faults], [str(l) for l in options.levels], options.repeat
    (['kill', 'partition'], ['off', 'on'], 3)
    """
    _check_consistent(raw)
    matrix, quick = bool(raw.get("matrix")), bool(raw.get("quick"))
    usual = "kill-member-all" if raw.get("return_order") else "kill"
    names = _matrix_faults(quick) if matrix else listed(raw.get("fault") or usual, "fault")
    faults = tuple(dict.fromkeys(fault(name) for name in names))
    if raw.get("return_order") and (other := next((one.name for one in faults if not one.takes_all), "")):
        takes_all = [name for name, one in CATALOGUE.items() if one.takes_all]
        raise UsageError(f"{other} leaves no choice of who comes back first", f"--fault {','.join(takes_all)}")
    return ProveOptions(
        faults=faults,
        levels=_levels(raw.get("levels"), matrix),
        victim=victim(str(raw["victim"])) if raw.get("victim") else None,
        route=str(raw.get("route") or "multi-host").strip().lower(),
        writers=_positive(raw, "writers", 16),
        repeat=_positive(raw, "repeat", 1 if not matrix or quick else 2),
        until_bound=_bound(raw.get("until_bound")),
        storm=_positive(raw, "storm", 0),
        storm_faults=_positive(raw, "storm_faults", 4),
        shrink=0 if str(raw.get("shrink")) == "0" else _positive(raw, "shrink", 8),
        seed=_positive(raw, "seed", 1),
        matrix=matrix,
        budget_s=QUICK_S if matrix and quick else None,
        client_timeout_s=_client_timeout(raw.get("client_timeout")),
        own_load=_own_load(raw),
        salvage=bool(raw.get("salvage")),
    )


def _own_load(raw: RawOptions) -> Arm | None:
    if raw.get("workload") is not None:
        return Arm(Level.ON, _positive(raw, "clients", 4), parse_workload(raw))
    for name in ("clients", "define", "scale", "protocol", "max_tries", "skew", "init"):
        if raw.get(name) is not None:
            flag = "--" + name.replace("_", "-")
            raise UsageError(f"{flag} needs --workload", f"--workload mine.sql {flag} …")
    return None


def _client_timeout(text: object) -> float:
    if text is None:
        return 3.0
    timeout_s = duration_s(str(text))
    if not 0.1 <= timeout_s <= 60:
        raise UsageError(f"{timeout_s:g} s is no time for a client to wait", "--client-timeout 1s (0.1s to 60s)")
    return timeout_s


def _matrix_faults(quick: bool) -> list[str]:
    """The faults of the columns; a crash that is certain to be in place takes a minute longer than quick ones have."""
    names = [name for name, _, _ in COLUMNS]
    return names if quick else ["crash-in-place" if name == "kill-all" else name for name in names]


_CONTRADICTIONS = (
    ("matrix", ("fault", "storm"), "--matrix has its own faults", "leave --fault and --storm out"),
    ("matrix", ("victim",), "--matrix has its own victims", "leave --victim out"),
    ("pitfall", ("workload",), "a pitfall brings its own load", "leave --workload out"),
    ("pitfall", ("salvage",), "a pitfall has no ledger to salvage", "leave --salvage out"),
    ("storm", ("fault",), "--storm draws its own faults", "leave --fault out"),
    ("return_order", ("matrix", "storm"), "--return-order is of a fault of all members", "--fault power-cut-all"),
    ("storm", ("victim",), "--storm draws its own victims", "leave --victim out"),
)  # fmt: skip
"""An option, the others that it excludes, what to say then, and what to type."""


def _check_consistent(raw: RawOptions) -> None:
    """Refuse empty values, which would silently mean the default, and options that contradict one another."""
    empty = next((name for name, value in raw.items() if isinstance(value, str) and not value.strip()), None)
    if empty:
        flag = "--" + empty.replace("_", "-")
        raise UsageError(f"{flag} is empty", f"leave {flag} out, or see walproof prove --help")
    if raw.get("quick") and not raw.get("matrix"):
        raise UsageError("--quick belongs to --matrix", "walproof prove --matrix --quick")
    for option, others, why, hint in _CONTRADICTIONS:
        if raw.get(option) and any(raw.get(other) for other in others):
            raise UsageError(why, hint)
    if not raw.get("storm") and (raw.get("storm_faults") or raw.get("shrink")):
        raise UsageError("--storm-faults and --shrink belong to --storm", "walproof prove --storm 3 --storm-faults 5")


def _levels(text: object, matrix: bool) -> tuple[Level, ...]:
    if text is None:
        return tuple(Level) if matrix else (Level.OFF, Level.ON)
    return tuple(dict.fromkeys(level(name) for name in listed(text, "levels")))


def _bound(text: object) -> float | None:
    if text is None:
        return None
    bound = share(str(text))
    if not 0 < bound < 1:
        raise UsageError("a bound of 0 would need endless drills", "--until-bound 5%")
    return bound


def _positive(raw: RawOptions, name: str, default: int) -> int:
    flag = "--" + name.replace("_", "-")
    return default if raw.get(name) is None else parse_positive_int(raw[name], f"value of {flag}")
