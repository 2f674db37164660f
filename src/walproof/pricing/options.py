"""The options of `walproof price`: the values as typed are parsed once, here, or refused with one sentence.

The values as typed go into the record, so that --resume and --repeat parse the very same again. Of files it reads
scripts, to refuse what cannot be measured, and region plans."""

import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from walproof.errors import UsageError
from walproof.links.round_trips import read_regions
from walproof.model.facts import mebibytes
from walproof.model.guarantee import Level, QuorumKind, level
from walproof.model.sample import Arm, Scenario, WorkloadKind
from walproof.model.units import counted, duration_s, parse_positive_int, share
from walproof.pricing.sampling import AGAIN, Question, sample_seconds
from walproof.pricing.workload_options import POOL_ROUTE, parse_workload

MOST_CLIENTS = 262_143
"""The largest max_connections that PostgreSQL takes (its manual, Connection Settings)."""
CLIENTS = "1,16"
CLIENTS_FOR_PREDICTION = "1,2,3,4,6,8,12,16,24,32"
"""Clients measured by default when a prediction is asked."""

RawOptions = Mapping[str, Any]
"""Option name → value as typed, number, flag, or None when not given."""
Quorum = tuple[QuorumKind, int | None]
"""ANY or FIRST, and how many standbys; None is all there are."""
Mix = tuple[tuple[Level, float], ...]
Parsed = TypeVar("Parsed")


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """The level to tune, and the limit on its p95 in ms."""

    level: Level
    limit_ms: float


@dataclass(frozen=True, slots=True)
class PriceOptions:
    """What `walproof price` was asked. Scenarios of `grid` lack their quorum: `question` adds it.

    predict: clients and round trip in ms of the points to predict, None for the smallest round trip measured.
    """

    grid: Question
    quorums: tuple[Quorum, ...] = ()
    max_clients: int | None = None
    tune: TuneOptions | None = None
    break_even: bool = False
    predict: tuple[tuple[int, float | None], ...] = ()
    hold_out: bool = False
    soak: bool = False

    def question(self, standbys: int | None = None) -> Question:
        """The grid under every quorum asked; UsageError when one is larger than the standbys there are (if known)."""
        quorums = [(kind, _size(k, standbys)) for kind, k in self.quorums]
        grid = self.grid.scenarios
        combined = tuple(replace(one, quorum_kind=kind, quorum=k) for kind, k in quorums for one in grid)
        return replace(self.grid, scenarios=combined or grid)


def _size(k: int | None, standbys: int | None) -> int:
    if k is not None and standbys is not None and k > standbys:
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
    baseline = level(str(raw.get("baseline") or "local"))
    workload = parse_workload(raw)
    mix = _mix(raw.get("mix"))
    if mix and (workload.kind is WorkloadKind.SELECT_ONLY or {n for n, _ in workload.scripts} == {"select-only"}):
        raise UsageError(
            "select-only commits nothing, so a mix of commit levels has no meaning in it",
            "choose another --workload, or leave --mix out",
        )
    tune = _tune(raw, baseline)
    predict, hold_out = _predictions(raw.get("predict")), bool(raw.get("hold_out"))
    max_clients = None if raw.get("max_clients") is None else parse_positive_int(raw["max_clients"], "cap on clients")
    clients = _clients(raw, CLIENTS_FOR_PREDICTION if predict or hold_out else CLIENTS, max_clients)
    scenarios, quorums = _scenarios(raw), _quorums(raw.get("quorum"))
    if raw.get("mode") and not quorums:
        raise UsageError("--mode says what becomes of a quorum, and none is asked", "--quorum any1 --mode strict")
    if predict or hold_out:
        _check_points(len(clients) * len({s.rtt_ms for s in scenarios}))
    arms = _arms(raw, clients, Arm(baseline, 1, workload), mix)
    load = _fractions(raw.get("load"))
    budget_s = duration_s(str(raw.get("budget") or "2min"))
    if budget_s <= 0:
        raise UsageError("a budget of nothing measures nothing", "--budget 2min")
    visits = len(scenarios) * max(1, len(quorums))
    default_s = sample_seconds(budget_s, len(arms) * (1 + len(load)), visits)
    sample_s = duration_s(str(raw["sample"])) if raw.get("sample") else default_s
    if sample_s <= 0:
        raise UsageError("a sample of no length measures nothing", "--sample 2s")
    precision = share(str(raw.get("precision") or "3%"))
    if precision <= 0:
        raise UsageError("a precision of 0 is never reached", "--precision 3%")
    seed = parse_positive_int(raw.get("seed") or 1, "seed")
    grid = Question(scenarios, arms, baseline, sample_s, precision, budget_s, seed, load, _cycles(raw))
    return PriceOptions(grid, quorums, max_clients, tune, bool(raw.get("break_even")), predict, hold_out)


def _cycles(raw: RawOptions) -> int:
    """Whole checkpoint cycles to measure, 0 when none are asked; refuses what would cut them short."""
    if not raw.get("steady"):
        return 0
    for other in ("budget", "precision", "load", "tune", "break_even"):
        if raw.get(other):
            name = other.replace("_", "-")
            raise UsageError(
                f"--steady measures whole checkpoint cycles and --{name} would cut them short", f"leave --{name} out"
            )
    return parse_positive_int(raw["steady"], "number of checkpoint cycles")


def _tune(raw: RawOptions, baseline: Level) -> TuneOptions | None:
    """What to tune, None when nothing is; refuses a search without its goal and a goal without its search."""
    if not raw.get("tune"):
        for goal in ("limit", "level"):
            if raw.get(goal):
                raise UsageError(f"--{goal} belongs to --tune", "--tune --level on --limit 10ms")
        return None
    if not raw.get("limit"):
        raise UsageError("a tune without a latency limit would only pile up clients", "--tune --limit 10ms")
    if raw.get("break_even"):
        raise UsageError("--tune and --break-even are two searches", "ask them one after the other")
    if raw.get("mix"):
        raise UsageError("a mix cannot be tuned: tuning is for one level", "leave --mix out")
    limit_ms = 1000 * duration_s(str(raw["limit"]))
    if limit_ms <= 0:
        raise UsageError("nothing stays under a limit of 0", "--limit 10ms")
    tuned = level(str(raw.get("level") or "on"))
    if tuned is baseline:
        raise UsageError("tuning a level against itself compares nothing", "choose another --level or --baseline")
    return TuneOptions(tuned, limit_ms)


def _predictions(text: object) -> tuple[tuple[int, float | None], ...]:
    """Clients and round trip in ms of each point, None where it is not given.

    >>> _predictions("32@5ms,64")
    ((32, 5.0), (64, None))
    """
    if text is None:
        return ()
    points = [part.partition("@") for part in _list(text, "predictions", "--predict 32@5ms,64@10ms")]
    return tuple((parse_positive_int(c, "number of clients"), _rtt_ms(rtt) if at else None) for c, at, rtt in points)


def _check_points(points: int) -> None:
    if points < FEWEST_POINTS:
        raise UsageError(
            f"a prediction from {counted(points, 'measured point')} a level would be a guess",
            f"measure at least {FEWEST_POINTS}, for example --clients 1,2,4,8,16,32",
        )


def _arms(raw: RawOptions, clients: tuple[int, ...], plain: Arm, mix: Mix) -> tuple[Arm, ...]:
    levels = _levels(raw.get("levels"), plain.level, only_baseline=bool(mix or raw.get("aa")))
    route = str(raw.get("route") or "direct")
    pool = None if raw.get("pool") is None else parse_positive_int(raw["pool"], "pool")
    if pool is not None and route != POOL_ROUTE:
        raise UsageError("a pool size needs PgBouncer in the route", "--route pgbouncer --pool 20")
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


def _list(text: object, what: str, example: str) -> list[str]:
    """The parts of a comma-separated list; an empty list or an empty part is refused."""
    parts = [part.strip() for part in str(text).split(",")]
    if not all(parts):
        raise UsageError(f"the list of {what} {text!r} has nothing in it or an empty place", f"write it like {example}")
    return parts


def _levels(text: object, baseline: Level, *, only_baseline: bool) -> tuple[Level, ...]:
    """The levels asked, the baseline always among them; all five by default."""
    if text is None:
        return (baseline,) if only_baseline else tuple(Level)
    asked = {level(part) for part in _list(text, "levels", "--levels off,local,on")} | {baseline}
    return tuple(one for one in Level if one in asked)


def _clients(raw: RawOptions, default: str, cap: int | None) -> tuple[int, ...]:
    """The client counts asked, each once, in order."""
    text = default if raw.get("clients") is None else raw["clients"]
    parts = _list(text, "clients", "--clients 1,16")
    counts = tuple(dict.fromkeys(parse_positive_int(part, "number of clients") for part in parts))
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
    for part in _list(text, "a mix", "--mix on=10,local=90"):
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
    fractions = tuple(share(part) for part in _list(text, "loads", "--load 0.5,0.8"))
    if min(fractions) <= 0:
        raise UsageError("a load of 0 offers nothing", "--load 0.5,0.8")
    return fractions


def _scenarios(raw: RawOptions) -> tuple[Scenario, ...]:
    """Every combination of the outer factors but the quorum; one scenario that changes nothing when none is asked."""
    combined = itertools.product(
        _each(raw.get("rtt"), "round trips", "--rtt 0,3ms,10ms", _rtt_ms),
        _each(raw.get("regions"), "regions", "--regions europe,one-region", _region),
        _each(raw.get("cpu"), "processors", "--cpu 1,2", _cores),
        _each(raw.get("memory"), "memory", "--memory 1Gi,4Gi", _memory_mib),
        _each(raw.get("fsync"), "fsync", "--fsync on,off", _on_or_off("fsync")),
        _each(raw.get("wal_volume"), "wal-volume", "--wal-volume on,off", _on_or_off("wal-volume")),
        _each(raw.get("mode"), "modes", "--mode strict,degrading", _strict),
    )
    return tuple(
        Scenario(rtt_ms=rtt, regions=region, cores=cpu, memory_mib=memory, fsync=fsync, wal_volume=wal, strict=strict)
        for rtt, region, cpu, memory, fsync, wal, strict in combined
    )


def _each(text: object, what: str, example: str, parse: Callable[[str], Parsed]) -> list[Parsed | None]:
    return [None] if text is None else [parse(part) for part in _list(text, what, example)]


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
        raise UsageError(f"{part!r} is no size of memory", "write it as Kubernetes does: --memory 512Mi,4Gi")
    return round(mib)


def _strict(part: str) -> bool:
    if part not in ("strict", "degrading"):
        raise UsageError(f"{part!r} is no mode", "write it like --mode strict,degrading")
    return part == "strict"


def _on_or_off(what: str) -> Callable[[str], bool]:
    def parse(part: str) -> bool:
        if part not in ("on", "off"):
            raise UsageError(f"{part!r} is neither on nor off", f"--{what} on,off")
        return part == "on"

    return parse


def _quorums(text: object) -> tuple[Quorum, ...]:
    return () if text is None else tuple(map(_quorum, _list(text, "quorums", "--quorum any1,first1,all")))


def _quorum(text: str) -> Quorum:
    """any2, first1 or all.

    >>> _quorum("any1"), _quorum("all")
    ((<QuorumKind.ANY: 'ANY'>, 1), (<QuorumKind.FIRST: 'FIRST'>, None))
    """
    if text.lower() == "all":
        return QuorumKind.FIRST, None
    match = re.fullmatch(r"(any|first)\s*([1-9]\d*)", text.lower())
    if match is None:
        raise UsageError(f"{text!r} is not a quorum", "write it like --quorum any1,first1,all")
    return QuorumKind(match[1].upper()), int(match[2])


FEWEST_POINTS = 6
"""Points a level needs at least: one for each parameter that they can tell apart (`free`)."""
