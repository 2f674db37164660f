"""Sync at the price of async: which settings and clients give a level the most throughput under a latency limit.

Successive halving (Karnin, Koren & Somekh 2013; Jamieson & Talwalkar 2016) over paired blocks: every contestant left
runs once a block, the better half of each level goes on with twice the blocks. A generator: asks for rounds, runs none.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from walproof.model.guarantee import Level, QuorumKind
from walproof.model.plan import Arm, Setting
from walproof.model.topology import Route

PARAMETERS: tuple[tuple[tuple[str, str], ...], ...] = (
    (),
    (("commit_delay", "200"), ("commit_siblings", "4")),
    (("commit_delay", "1000"), ("commit_siblings", "8")),
    (("wal_compression", "on"),),
    (("commit_delay", "500"), ("commit_siblings", "4"), ("wal_compression", "on")),
)
"""What a reload can change of how WAL is written; the first leaves the target as it is."""
POOLS = (8, 16, 32)
CLIENTS = (8, 16, 32, 64, 128)
MOST_CLIENTS = 64
"""Clients beyond this are tried only when --max-clients says so: PostgreSQL's own default allows 100 sessions."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """One way to run one level: outer setting and arm."""

    setting: Setting
    arm: Arm


@dataclass(frozen=True, slots=True)
class Score:
    """How a contestant did: mean over blocks of log(tps / the block's geometric mean), tps, p95 in ms."""

    log_tps: float
    tps: float
    p95_ms: float


@dataclass(frozen=True, slots=True)
class Round:
    """Contestants to be run in so many blocks."""

    contestants: tuple[Contestant, ...]
    blocks: int


@dataclass(frozen=True, slots=True)
class Tuned:
    """The best contestant of the level and of the baseline, and their scores in the last round of the search."""

    best: Contestant
    best_score: Score
    best_local: Contestant
    local_score: Score
    within_limit: bool


Search = Generator[Round, Mapping[Contestant, Score], Tuned]


@dataclass(frozen=True, slots=True)
class Space:
    """Where to search: base arm, level and baseline, most clients, whether there is a pool.

    quorum_open: whether a quorum of one is not in force yet and could be.
    """

    base: Arm
    level: Level
    baseline: Level
    most_clients: int
    quorum_open: bool
    pooled: bool
    outer: Setting


def contestants(space: Space, count: int, rng: np.random.Generator) -> tuple[Contestant, ...]:
    """About `count` ways of each level, drawn at random but with the plain ones (nothing changed) always among them."""
    clients = [n for n in CLIENTS if n <= space.most_clients] or [space.most_clients]
    routes: list[tuple[Route, int | None]] = [(space.base.route, space.base.pool)]
    if space.pooled:
        routes += [(Route.PGBOUNCER, pool) for pool in POOLS]
    quorums = [space.outer]
    if space.quorum_open and space.outer.quorum is None:
        quorums.append(replace(space.outer, quorum_kind=QuorumKind.ANY, quorum=1))
    settings = [replace(outer, parameters=parameters) for outer in quorums for parameters in PARAMETERS]
    ways = [(settings[0], n, *routes[0]) for n in clients]
    others = [(s, n, r, p) for s in settings for n in clients for r, p in routes if (s, n, r, p) not in ways]
    chosen = rng.permutation(len(others))[: max(0, count - len(ways))]
    ways += [others[i] for i in sorted(chosen)]
    return tuple(
        Contestant(setting, replace(space.base, level=level, clients=n, route=route, pool=pool))
        for level in (space.level, space.baseline)
        for setting, n, route, pool in ways
    )


def tune(field: Sequence[Contestant], level: Level, baseline: Level, limit_ms: float) -> Search:
    """Halve until one contestant of each level is left."""
    left = {one: [c for c in field if c.arm.level is one] for one in (level, baseline)}
    blocks = 1
    scores: Mapping[Contestant, Score] = {}
    while max(map(len, left.values())) > 1 or not scores:
        scores = yield Round(tuple(c for group in left.values() for c in group), blocks)
        left = {one: better_half([c for c in group if c in scores], scores, limit_ms) for one, group in left.items()}
        blocks *= 2
    best, local = left[level][0], left[baseline][0]
    return Tuned(best, scores[best], local, scores[local], scores[best].p95_ms <= limit_ms)


def better_half(group: Sequence[Contestant], scores: Mapping[Contestant, Score], limit_ms: float) -> list[Contestant]:
    """The better half, at least one: those under the limit by throughput first, then the others by latency."""

    def rank(contestant: Contestant) -> tuple[bool, float]:
        score = scores[contestant]
        over = score.p95_ms > limit_ms
        return over, (score.p95_ms if over else -score.log_tps)

    return sorted(group, key=rank)[: max(1, len(group) // 2)]


def rounds_cost_slices(count: int) -> int:
    """Slices a search of so many contestants a level takes for both levels: each round costs about the same.

    >>> rounds_cost_slices(8)
    48
    """
    slices, blocks = 2 * count, 1
    while count > 3:
        count, blocks = count // 2, blocks * 2
        slices += 2 * count * blocks
    return slices


def words(contestant: Contestant) -> str:
    """The contestant in short words."""
    arm = contestant.arm
    pool = f", pool {arm.pool}" if arm.pool else ""
    return f"{arm.level}, {arm.clients} clients, {arm.route}{pool}, {contestant.setting.text}"
