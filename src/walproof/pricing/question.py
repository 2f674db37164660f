"""Words of the command line → a Question, or one sentence why it is not valid. Reads scripts' existence only.

The words themselves go into the record, so that --resume and --repeat ask the very same thing.
"""

import itertools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from walproof.errors import UsageError
from walproof.links.sites import read_regions
from walproof.model.guarantee import Level, QuorumKind, level
from walproof.model.plan import Arm, Scenario, Workload, WorkloadKind
from walproof.model.units import duration_s, share
from walproof.pricing.design import AGAIN, Question, sample_seconds

MOST_CLIENTS = 262_143
"""The largest max_connections that PostgreSQL takes (its manual, Connection Settings)."""
Words = Mapping[str, Any]
"""Option name → text as typed, number, flag, or None when not given."""


FOR_PREDICTION = "1,2,4,8,16,32"
"""Clients measured when a prediction is asked and none are said."""


def question_of(words: Words, standbys: int | None = None) -> Question:
    """The question these words ask; `standbys` of the target, when known, bounds the quorum.

    >>> [a.level.value for a in question_of({"levels": "local,on", "clients": "1"}).arms]
    ['local', 'on']
    """
    baseline = level(str(words.get("baseline") or "local"))
    workload = workload_of(str(words.get("workload") or "tpcb-like"), whole(words.get("scale") or 20, "scale"))
    mix = mix_of(words.get("mix"))
    if mix and workload.kind is WorkloadKind.SELECT_ONLY:
        raise UsageError(
            "select-only commits nothing, so a mix of commit levels has no meaning in it",
            "choose another --workload, or leave --mix out",
        )
    _searches(words)
    arms = _arms(words, baseline, workload, mix)
    settings = settings_of(words, standbys)
    budget_s = duration_s(str(words.get("budget") or "2min"))
    if budget_s <= 0:
        raise UsageError("a budget of nothing measures nothing", "--budget 2min")
    load = fractions_of(words.get("load"))
    spoken = words.get("sample")
    phases = 1 + len(load)
    sample_s = duration_s(str(spoken)) if spoken else sample_seconds(budget_s, len(arms) * phases, len(settings))
    if sample_s <= 0:
        raise UsageError("a sample of no length measures nothing", "--sample 2s")
    precision = share(str(words.get("precision") or "3%"))
    if precision <= 0:
        raise UsageError("a precision of 0 is never reached", "--precision 3%")
    return Question(settings, arms, baseline, sample_s, precision, budget_s, seed_of(words), load)


def _searches(words: Words) -> None:
    """Refuse searches that lack their goal, and goals without a search."""
    if words.get("tune") and not words.get("limit"):
        raise UsageError("a tune without a latency limit would only pile up clients", "--tune --limit 10ms")
    for goal in ("limit", "level"):
        if words.get(goal) and not words.get("tune"):
            raise UsageError(f"--{goal} belongs to --tune", "--tune --level on --limit 10ms")
    if words.get("tune") and words.get("break_even"):
        raise UsageError("--tune and --break-even are two searches", "ask them one after the other")
    if words.get("tune") and words.get("mix"):
        raise UsageError("a mix cannot be tuned: tuning is for one level", "leave --mix out")
    if words.get("limit") and duration_s(str(words["limit"])) <= 0:
        raise UsageError("nothing stays under a limit of 0", "--limit 10ms")
    if level(str(words.get("level") or "on")) is level(str(words.get("baseline") or "local")) and words.get("tune"):
        raise UsageError("tuning a level against itself compares nothing", "choose another --level or --baseline")
    if predictions_of(words.get("predict")) or words.get("hold_out"):
        rtts = words.get("rtt")
        clients = FOR_PREDICTION if words.get("clients") is None else words["clients"]
        points = len(clients_of(clients)) * (len(listed(rtts, "round trips", "--rtt 0,3ms")) if rtts else 1)
        if points < 4:
            raise UsageError(
                f"a prediction from {points} measured points a level would be a guess",
                "measure at least four, for example --clients 1,4,16,64",
            )


def predictions_of(text: object) -> tuple[tuple[int, float | None], ...]:
    """Points to predict: clients and round trip in ms, None where it was not said.

    >>> predictions_of("32@5ms,64")
    ((32, 5.0), (64, None))
    """
    if text is None:
        return ()
    points = [part.partition("@") for part in listed(text, "predictions", "--predict 32@5ms,64@10ms")]
    return tuple((whole(c, "number of clients"), _rtt_ms(rtt) if at else None) for c, at, rtt in points)


def _arms(words: Words, baseline: Level, workload: Workload, mix: tuple[tuple[Level, float], ...]) -> tuple[Arm, ...]:
    levels = levels_of(words.get("levels"), baseline, only_baseline=bool(mix or words.get("aa")))
    route = str(words.get("route") or "direct")
    pool = None if words.get("pool") is None else whole(words["pool"], "pool")
    if pool is not None and route != "pgbouncer":
        raise UsageError("a pool size needs PgBouncer in the route", "--route pgbouncer --pool 20")
    rate = None if words.get("rate") is None else float(whole(words["rate"], "rate"))
    arms: list[Arm] = []
    default = FOR_PREDICTION if words.get("predict") or words.get("hold_out") else "1,16"
    spoken = words.get("clients")
    for clients in clients_of(default if spoken is None else spoken):
        _within(clients, words.get("max_clients"))
        first = Arm(baseline, clients, workload, route, pool, rate)
        arms += [replace(first, level=one) for one in levels]
        if words.get("aa"):
            arms.append(replace(first, label=AGAIN))
        if mix:
            strongest = max((one for one, _ in mix), key=lambda one: one.strength)
            arms.append(replace(first, level=strongest, mix=mix))
    return tuple(arms)


def _within(clients: int, cap: object) -> None:
    if cap is not None and clients > whole(cap, "cap on clients"):
        raise UsageError(f"{clients} clients are more than --max-clients {cap} allows", f"--clients {cap}")


def listed(text: object, what: str, example: str) -> list[str]:
    """The parts of a comma-separated list; an empty list or an empty part is refused."""
    parts = [part.strip() for part in str(text).split(",")]
    if not all(parts):
        raise UsageError(f"the list of {what} {text!r} has nothing in it or an empty place", f"write it like {example}")
    return parts


def levels_of(text: object, baseline: Level, *, only_baseline: bool = False) -> tuple[Level, ...]:
    """The levels asked, the baseline always among them; all five when nothing is said."""
    if text is None:
        return (baseline,) if only_baseline else tuple(Level)
    asked = {level(part) for part in listed(text, "levels", "--levels off,local,on")} | {baseline}
    return tuple(one for one in Level if one in asked)


def clients_of(text: object) -> tuple[int, ...]:
    """The client counts asked, each once, in order."""
    parts = listed(text, "clients", "--clients 1,16")
    counts = tuple(dict.fromkeys(whole(part, "number of clients") for part in parts))
    if max(counts) > MOST_CLIENTS:
        raise UsageError(
            f"{max(counts)} clients are more than PostgreSQL ever lets in (max_connections is at most {MOST_CLIENTS})",
            "--clients 1,16,64",
        )
    return counts


def whole(text: object, what: str) -> int:
    """A whole number from 1 up."""
    if not re.fullmatch(r"\+?[0-9]{1,9}", str(text).strip()) or int(str(text)) < 1:
        raise UsageError(f"{text!r} is not a {what}: it must be a whole number from 1 up", "for example 16")
    return int(str(text))


def workload_of(text: str, scale: int) -> Workload:
    """A workload by name, `batch:N`, or the path of a pgbench script that can be read."""
    if text in (WorkloadKind.BATCH, "batch:"):
        raise UsageError("a batch needs its number of rows", "--workload batch:100")
    if text.startswith("batch:"):
        return Workload(WorkloadKind.BATCH, scale, whole(text.removeprefix("batch:"), "number of rows"))
    if text in {k.value for k in WorkloadKind} - {WorkloadKind.SCRIPT.value}:
        return Workload(WorkloadKind(text), scale)
    if not text.endswith(".sql") and not os.path.exists(text):
        names = "tpcb-like, select-only, simple-update, insert, batch:N"
        raise UsageError(
            f"{text!r} is no workload and no file", f"choose {names}, or give the path of a pgbench script"
        )
    if not os.path.isfile(text) or not os.access(text, os.R_OK):
        raise UsageError(f"the script {text!r} cannot be read", "give the path of a pgbench script this user may read")
    return Workload(WorkloadKind.SCRIPT, scale, script=os.path.abspath(text))


def mix_of(text: object) -> tuple[tuple[Level, float], ...]:
    """Weights per level of a mix such as on=10,local=90; empty when none is asked."""
    if text is None:
        return ()
    weights: dict[Level, float] = {}
    for part in listed(text, "a mix", "--mix on=10,local=90"):
        name, _, weight = part.partition("=")
        if not re.fullmatch(r"\d+(\.\d+)?", weight.strip()) or float(weight) <= 0:
            raise UsageError(f"{part!r} is not a level and its weight", "write it like --mix on=10,local=90")
        if level(name) in weights:
            raise UsageError(f"the mix names {level(name)} twice", "give each level one weight")
        weights[level(name)] = float(weight)
    return tuple(weights.items())


def seed_of(words: Words) -> int:
    """The seed of every random choice."""
    return whole(words.get("seed") or 1, "seed")


def fractions_of(text: object) -> tuple[float, ...]:
    """Fractions of measured capacity for open loop, each above 0 and at most 1."""
    if text is None:
        return ()
    fractions = tuple(share(part) for part in listed(text, "loads", "--load 0.5,0.8"))
    if min(fractions) <= 0:
        raise UsageError("a load of 0 offers nothing", "--load 0.5,0.8")
    return fractions


def settings_of(words: Words, standbys: int | None) -> tuple[Scenario, ...]:
    """Every combination of the outer factors asked; one setting that changes nothing when none is."""
    quorums = (
        [quorum_of(part, standbys) for part in listed(words["quorum"], "quorums", "--quorum any1,first1,all")]
        if (words.get("quorum") is not None)
        else [(None, None)]
    )
    rtts = _each(words.get("rtt"), "round trips", "--rtt 0,3ms,10ms", _rtt_ms)
    regions = _each(words.get("regions"), "regions", "--regions europe,one-region", _region)
    cores = _each(words.get("cpu"), "processors", "--cpu 1,2", _cores)
    return tuple(
        Scenario(kind, k, rtt, region, cpu, fsync, wal)
        for (kind, k), rtt, region, cpu, fsync, wal in itertools.product(
            quorums,
            rtts,
            regions,
            cores,
            _switch(words.get("fsync"), "fsync"),
            _switch(words.get("wal_volume"), "wal-volume"),
        )
    )


def _each(text: object, what: str, example: str, read: Any) -> Sequence[Any]:
    return [None] if text is None else [read(part) for part in listed(text, what, example)]


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


def _switch(text: object, what: str) -> Sequence[bool | None]:
    if text is None:
        return [None]
    words = listed(text, what, f"--{what} on,off")
    if not set(words) <= {"on", "off"}:
        raise UsageError(f"{text!r} is neither on nor off", f"--{what} on,off")
    return [word == "on" for word in words]


def quorum_of(text: str, standbys: int | None) -> tuple[QuorumKind, int]:
    """any2, first1 or all, no larger than the standbys there are.

    >>> quorum_of("any1", 2), quorum_of("all", 2)
    ((<QuorumKind.ANY: 'ANY'>, 1), (<QuorumKind.FIRST: 'FIRST'>, 2))
    """
    if text.lower() == "all":
        return QuorumKind.FIRST, standbys or 1
    match = re.fullmatch(r"(any|first)\s*([1-9]\d*)", text.lower())
    if match is None:
        raise UsageError(f"{text!r} is not a quorum", "write it like --quorum any1,first1,all")
    if standbys is not None and int(match[2]) > standbys:
        raise UsageError(
            f"a quorum of {match[2]} is larger than the {standbys} standbys there are",
            f"ask for at most any{max(1, standbys)}, or a lab with more members (lab up --members N)",
        )
    return QuorumKind(match[1].upper()), int(match[2])
