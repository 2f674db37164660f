"""The options of `walproof price`: the values as typed are parsed once, here, or refused with one sentence.

The values as typed go into the record, so that --resume and --repeat parse the very same again. Of files it reads
scripts, to refuse what cannot be measured, and region plans."""

import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from walproof.errors import UsageError
from walproof.links.round_trips import read_regions
from walproof.load.workload_options import POOL_ROUTE, is_relative, parse_workload, scale_on
from walproof.model.cnpg_facts import mebibytes
from walproof.model.guarantee import AskedQuorum, Level, level, read_quorum
from walproof.model.sample import Arm, Scenario, WorkloadKind
from walproof.model.topology import Description
from walproof.model.units import counted, duration_s, listed, parse_positive_int, share
from walproof.pricing.results_and_gate import Requirement, parse_requirements
from walproof.pricing.sampling import AGAIN, Question, sample_seconds

MOST_CLIENTS = 262_143
"""The largest max_connections that PostgreSQL takes (its manual, Connection Settings)."""
CLIENTS = "1,16"
CLIENTS_FOR_PREDICTION = "1,2,3,4,6,8,12,16,24,32"
"""Clients measured by default when a prediction is asked."""
FEWEST_POINTS = 6
"""Points a level needs at least: one for each parameter that they can tell apart (`free`)."""
SHORTEST_SOAK_S, LONGEST_STRETCH_S, STRETCHES = 10.0, 30.0, 10
"""A soak is cut into stretches; each arm gets so many at least, where the time allows."""
_NOT_WITH = {
    "soak": ("budget", "precision", "steady", "load", "tune", "break_even", "predict", "hold_out", "aa"),
    "steady": ("budget", "precision", "load", "tune", "break_even"),
    "tune": ("break_even", "mix"),
}

RawOptions = Mapping[str, Any]
"""Option name → value as typed, number, flag, or None when not given."""
Mix = tuple[tuple[Level, float], ...]


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """The level to tune, and the limit on its p95 in ms."""

    level: Level
    limit_ms: float


@dataclass(frozen=True, slots=True)
class PriceOptions:
    """What `walproof price` was asked. Scenarios of `grid` lack their quorum: `question` adds it.

    predict: clients and round trip in ms of the points to predict, None for the smallest round trip measured.
    relative_scale: such as "2xmemory", until `scaled` has put the number of a target in its place.
    """

    grid: Question
    quorums: tuple[AskedQuorum, ...] = ()
    max_clients: int | None = None
    tune: TuneOptions | None = None
    break_even: bool = False
    predict: tuple[tuple[int, float | None], ...] = ()
    hold_out: bool = False
    soak: bool = False
    requirements: tuple[Requirement, ...] = ()
    relative_scale: str = ""

    def question(self, standbys: int = 0) -> Question:
        """The grid under every quorum asked; UsageError when one is larger than the standbys there are (0: unknown)."""
        quorums = [(kind, _size(k, standbys)) for kind, k in self.quorums]
        grid = self.grid.scenarios
        combined = tuple(replace(one, quorum_kind=kind, quorum=k) for kind, k in quorums for one in grid)
        return replace(self.grid, scenarios=combined or grid)

    def scaled(self, target: Description) -> "PriceOptions":
        """With the relative scale as the number it is on that target; UsageError where it is not known."""
        scale = scale_on(target, self.relative_scale)
        arms = tuple(replace(arm, workload=replace(arm.workload, scale=scale)) for arm in self.grid.arms)
        return replace(self, grid=replace(self.grid, arms=arms), relative_scale="")


def _size(k: int | None, standbys: int) -> int:
    if k is not None and standbys and k > standbys:
        raise UsageError(
            f"a quorum of {k} is larger than the {counted(standbys, 'standby')} of this cluster",
            f"ask for at most any{max(1, standbys)}, or a lab with more members (lab up --members N)",
        )
    return k or standbys or 1


def parse_options(raw: RawOptions) -> PriceOptions:
    """The options as values; UsageError for the first that is not valid or contradicts another.

    >>> [a.level.value for a in parse_options({"levels": "local,on", "clients": "1"}).grid.arms]
    ['local', 'on']
    """
    _refuse_pairs(raw)
    baseline = level(str(raw.get("baseline") or "local"))
    workload, mix = parse_workload(raw), _mix(raw.get("mix"))
    if mix and (workload.kind is WorkloadKind.SELECT_ONLY or {n for n, _ in workload.scripts} == {"select-only"}):
        raise UsageError(
            "--mix needs a workload that commits, which select-only does not",
            "choose another --workload, or leave --mix out",
        )
    tune = _tune(raw, baseline)
    predict, hold_out = _predictions(raw.get("predict")), bool(raw.get("hold_out"))
    max_clients = None if raw.get("max_clients") is None else parse_positive_int(raw["max_clients"], "cap on clients")
    clients = _clients(raw, CLIENTS_FOR_PREDICTION if predict or hold_out else CLIENTS, max_clients)
    scenarios, quorums = _scenarios(raw), tuple(q for q in _each(raw.get("quorum"), "quorum", read_quorum) if q)
    if raw.get("mode") and not quorums:
        raise UsageError("--mode needs --quorum", "--quorum any1 --mode strict")
    points = len(clients) * len({s.rtt_ms for s in scenarios})
    if (predict or hold_out) and points < FEWEST_POINTS:
        raise UsageError(
            f"a prediction needs at least {FEWEST_POINTS} measured points a level, not {points}",
            "for example --clients 1,2,4,8,16,32",
        )
    arms = _arms(raw, clients, Arm(baseline, 1, workload), mix)
    load, visits = _fractions(raw.get("load")), len(scenarios) * max(1, len(quorums))
    soak = bool(raw.get("soak"))
    budget_s = _soak_s(raw, len(arms), visits) if soak else _above_0(duration_s, raw.get("budget"), "budget", "2min")
    sample_s = sample_seconds(budget_s, len(arms) * (1 + len(load)), visits)
    if raw.get("sample"):
        sample_s = _above_0(duration_s, raw["sample"], "sample", "2s")
    elif soak:
        sample_s = min(LONGEST_STRETCH_S, budget_s / (STRETCHES * len(arms)))
    grid = Question(
        scenarios,
        arms,
        baseline,
        sample_s,
        precision=_above_0(share, raw.get("precision"), "precision", "3%"),
        budget_s=budget_s,
        seed=parse_positive_int(raw.get("seed") or 1, "seed"),
        load=load,
        cycles=parse_positive_int(raw["steady"], "number of checkpoint cycles") if raw.get("steady") else 0,
    )
    return PriceOptions(
        grid,
        quorums,
        max_clients,
        tune,
        bool(raw.get("break_even")),
        predict=predict,
        hold_out=hold_out,
        soak=soak,
        requirements=_requirements(raw, arms),
        relative_scale=str(raw["scale"]) if is_relative(raw) else "",
    )


def _refuse_pairs(raw: RawOptions) -> None:
    """UsageError where two options are given that contradict each other."""
    for option, others in _NOT_WITH.items():
        for other in (other for other in others if raw.get(option) and raw.get(other)):
            name = other.replace("_", "-")
            raise UsageError(f"--{option} cannot be used with --{name}", f"leave --{name} out")


def _above_0(parse: Callable[[str], float], text: object, option: str, default: str) -> float:
    """The option's number, or the default's; UsageError unless it is greater than 0."""
    number = parse(str(text or default))
    if number <= 0:
        raise UsageError(f"--{option} must be greater than 0", f"--{option} {default}")
    return number


def _soak_s(raw: RawOptions, arms: int, scenarios: int) -> float:
    """How long to soak, seconds; UsageError for what a soak cannot hold."""
    if arms > 2 or scenarios > 1:
        raise UsageError(
            f"a soak is of one level or two, not of {counted(arms, 'arm')} under {counted(scenarios, 'scenario')}",
            "--soak 30min --levels local,on --clients 16, or --levels on --baseline on for one alone",
        )
    seconds = duration_s(str(raw["soak"]))
    if seconds < SHORTEST_SOAK_S:
        raise UsageError(f"--soak must be at least {SHORTEST_SOAK_S:g} s", "--soak 30min")
    return seconds


def _requirements(raw: RawOptions, arms: tuple[Arm, ...]) -> tuple[Requirement, ...]:
    """What --require asks; UsageError when a requirement concerns nothing that the run would measure."""
    requirements = parse_requirements(raw.get("require"))
    if requirements and (raw.get("tune") or raw.get("break_even")):
        raise UsageError("--require cannot be used with --tune or --break-even", "leave --require out")
    for one in requirements:
        if not any(one.concerns(arm) for arm in arms):
            raise UsageError(f"--require {one.text} names nothing that this run measures", "see --levels and --clients")
    return requirements


def _tune(raw: RawOptions, baseline: Level) -> TuneOptions | None:
    """What to tune, None when nothing is; refuses a search without its goal and a goal without its search."""
    if not raw.get("tune"):
        for goal in ("limit", "level"):
            if raw.get(goal):
                raise UsageError(f"--{goal} needs --tune", "--tune --level on --limit 10ms")
        return None
    if not raw.get("limit"):
        raise UsageError("--tune needs a latency --limit", "--tune --limit 10ms")
    tuned = level(str(raw.get("level") or "on"))
    if tuned is baseline:
        raise UsageError(f"--level and --baseline are both {tuned}", "choose another --level or --baseline")
    return TuneOptions(tuned, 1000 * _above_0(duration_s, raw["limit"], "limit", "10ms"))


def _predictions(text: object) -> tuple[tuple[int, float | None], ...]:
    """Clients and round trip in ms of each point, None where it is not given.

    >>> _predictions("32@5ms,64")
    ((32, 5.0), (64, None))
    """
    if text is None:
        return ()
    points = [part.partition("@") for part in listed(text, "predict")]
    return tuple((parse_positive_int(c, "number of clients"), _rtt_ms(rtt) if at else None) for c, at, rtt in points)


def _arms(raw: RawOptions, clients: tuple[int, ...], plain: Arm, mix: Mix) -> tuple[Arm, ...]:
    levels = _levels(raw.get("levels"), plain.level, only_baseline=bool(mix or raw.get("aa")))
    route = str(raw.get("route") or "direct")
    pool = None if raw.get("pool") is None else parse_positive_int(raw["pool"], "pool")
    if pool is not None and route != POOL_ROUTE:
        raise UsageError("--pool needs --route pgbouncer", "--route pgbouncer --pool 20")
    rate = None if raw.get("rate") is None else float(parse_positive_int(raw["rate"], "rate"))
    arms: list[Arm] = []
    for count in clients:
        first = replace(plain, clients=count, route=route, pool=pool, rate=rate)
        arms += [replace(first, level=one) for one in levels]
        if raw.get("aa"):
            arms.append(replace(first, label=AGAIN))
        if mix:
            strongest = max((one for one, _ in mix), key=lambda one: one.strength)
            arms.append(replace(first, level=strongest, mix=mix))
    return tuple(arms)


def _levels(text: object, baseline: Level, *, only_baseline: bool) -> tuple[Level, ...]:
    """The levels asked, the baseline always among them; all five by default."""
    if text is None:
        return (baseline,) if only_baseline else tuple(Level)
    asked = {level(part) for part in listed(text, "levels")} | {baseline}
    return tuple(one for one in Level if one in asked)


def _clients(raw: RawOptions, default: str, cap: int | None) -> tuple[int, ...]:
    """The client counts asked, each once, in order."""
    text = default if raw.get("clients") is None else raw["clients"]
    counts = tuple(dict.fromkeys(parse_positive_int(part, "number of clients") for part in listed(text, "clients")))
    most = max(counts)
    if most > MOST_CLIENTS:
        raise UsageError(
            f"{most} clients are more than PostgreSQL accepts (max_connections is at most {MOST_CLIENTS})",
            "--clients 1,16,64",
        )
    if cap is not None and most > cap:
        raise UsageError(f"{most} clients are more than --max-clients {cap} allows", f"--clients {cap}")
    return counts


def _mix(text: object) -> Mix:
    """Weights per level of a mix such as on=10,local=90; empty when none is asked."""
    if text is None:
        return ()
    weights: dict[Level, float] = {}
    for part in listed(text, "mix"):
        name, _, weight = part.partition("=")
        if not re.fullmatch(r"\d+(\.\d+)?", weight.strip()) or float(weight) <= 0:
            raise UsageError(f"{part!r} is not a level and its weight", "write it like --mix on=10,local=90")
        if level(name) in weights:
            raise UsageError(f"the mix names {level(name)} twice", "give each level one weight")
        weights[level(name)] = float(weight)
    return tuple(weights.items())


def _fractions(text: object) -> tuple[float, ...]:
    """Fractions of measured capacity for open loop, each above 0 and at most 1."""
    if text is None:
        return ()
    fractions = tuple(share(part) for part in listed(text, "load"))
    if min(fractions) <= 0:
        raise UsageError("--load must be greater than 0", "--load 0.5,0.8")
    return fractions


def _scenarios(raw: RawOptions) -> tuple[Scenario, ...]:
    """Every combination of the outer factors but the quorum; one scenario that changes nothing when none is asked."""
    factors: dict[str, tuple[str, Callable[[str], Any]]] = {
        "rtt_ms": ("rtt", _rtt_ms),
        "regions": ("regions", _region),
        "cores": ("cpu", _cores),
        "memory_mib": ("memory", _memory_mib),
        "fsync": ("fsync", _either("fsync")),
        "wal_volume": ("wal-volume", _either("wal-volume")),
        "strict": ("mode", is_strict),
    }
    values = (_each(raw.get(option.replace("-", "_")), option, parse) for option, parse in factors.values())
    return tuple(Scenario(**dict(zip(factors, combined, strict=True))) for combined in itertools.product(*values))


def _each(text: object, option: str, parse: Callable[[str], Any]) -> list[Any]:
    return [None] if text is None else list(dict.fromkeys(map(parse, listed(text, option))))


def _rtt_ms(part: str) -> float:
    return 1000 * duration_s(part)


def _region(part: str) -> str:
    """The name itself, once it is known that the plan can be read."""
    read_regions(part)
    return part


def _cores(part: str) -> float:
    if not re.fullmatch(r"\d+(\.\d+)?", part) or float(part) <= 0:
        raise UsageError(f"{part!r} is not a number of processors", "--cpu 0.5,2")
    return float(part)


def _memory_mib(part: str) -> int:
    mib = mebibytes(part)
    if mib is None or mib < 1:
        raise UsageError(f"{part!r} is not a size of memory", "write it as Kubernetes does: --memory 512Mi,4Gi")
    return round(mib)


def _either(option: str, yes: str = "on", no: str = "off") -> Callable[[str], bool]:
    """Reads one of two words, the first of which is True."""

    def parse(part: str) -> bool:
        if part not in (yes, no):
            raise UsageError(f"{part!r} is neither {yes} nor {no}", f"--{option} {yes},{no}")
        return part == yes

    return parse


def is_strict(part: str) -> bool:
    """Of a mode: whether commits wait where too few standbys are there; UsageError for neither mode."""
    return _either("mode", "strict", "degrading")(part)
