"""Sync at the price of async: which clients and settings give a level the most throughput under a latency limit.

Successive halving (Karnin, Koren & Somekh 2013; Jamieson & Talwalkar 2016) over paired blocks: every contestant left
runs once a block, the better half of each level goes on with twice the blocks. First over clients, which matter most,
then over settings, quorum and pools at the best two numbers of clients. A generator: asks for rounds, runs none.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace

from walproof.errors import TargetError
from walproof.model.guarantee import Level, QuorumKind
from walproof.model.plan import Arm, Scenario

PARAMETERS: tuple[tuple[tuple[str, str], ...], ...] = (
    (("commit_delay", "3000"), ("commit_siblings", "5")),
    (("commit_delay", "1000"), ("commit_siblings", "5")),
    (("commit_delay", "8000"), ("commit_siblings", "5")),
    (("wal_compression", "on"),),
    (("commit_delay", "3000"), ("commit_siblings", "5"), ("wal_compression", "on")),
)
"""What a reload can change of how WAL is written, the likeliest to help first."""
POOLS = (32, 16)
CLIENTS = (8, 16, 32, 48, 64, 96, 128)
MOST_CLIENTS = 64
"""Clients beyond this are tried only when --max-clients says so: PostgreSQL's own default allows 100 sessions."""
FEWEST_WAYS = 4
"""Ways of each level that are tried at the best numbers of clients, whatever the budget."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """One way to run one level: outer setting and arm."""

    setting: Scenario
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
    """The best contestant of the level and of the baseline."""

    best: Contestant
    best_local: Contestant


Search = Generator[Round, Mapping[Contestant, Score], Tuned]


@dataclass(frozen=True, slots=True)
class Space:
    """Where to search: base arm, level and baseline, most clients, whether there is a pool.

    quorum_open: whether a quorum of one is not in effect yet and could be.
    """

    base: Arm
    level: Level
    baseline: Level
    most_clients: int
    quorum_open: bool
    pooled: bool
    outer: Scenario


def clients_field(space: Space, level: Level) -> tuple[Contestant, ...]:
    """One level as it is, with every number of clients worth trying."""
    clients = [n for n in CLIENTS if n <= space.most_clients] or [space.most_clients]
    return tuple(_contestant(space, level, n) for n in clients)


def ways_field(space: Space, level: Level, clients: Sequence[int], count: int) -> tuple[Contestant, ...]:
    """`count` ways to run a level with these numbers of clients (best first), the likeliest to help first.

    Where commits are delayed, the next larger number of clients is tried too: they fill the wait.
    """
    best, *others = clients
    larger = [n for n in CLIENTS if best < n <= space.most_clients][:1]
    changed = [replace(space.outer, parameters=(*space.outer.parameters, *one)) for one in PARAMETERS]
    plain = _contestant(space, level, best)
    ways = [plain, *(_contestant(space, level, n, changed[0]) for n in (best, *larger))]
    if space.quorum_open and space.outer.quorum is None and level.remote:
        ways.append(_contestant(space, level, best, replace(space.outer, quorum_kind=QuorumKind.ANY, quorum=1)))
    pools = [pool for pool in POOLS if pool <= best] if space.pooled else []
    pooled = [replace(plain, arm=replace(plain.arm, route="pgbouncer", pool=pool)) for pool in pools]
    # Every kind of way has its turn before any has its second.
    ways += [*pooled[:1], *(_contestant(space, level, best, one) for one in changed[1:])]
    ways += [_contestant(space, level, n, one) for n in (*others, *larger) for one in (*changed[:2], None)]
    return tuple(dict.fromkeys([*ways, *pooled]))[:count]


def _contestant(space: Space, level: Level, clients: int, setting: Scenario | None = None) -> Contestant:
    return Contestant(setting or space.outer, replace(space.base, level=level, clients=clients))


def tune(space: Space, limit_ms: float, samples: int) -> Search:
    """The best contestant of the level and of the baseline, within about so many samples."""
    both = (space.level, space.baseline)
    fields = {one: clients_field(space, one) for one in both}
    ranked = yield from halve(fields, limit_ms)
    left = samples - rounds_cost_samples(len(fields[space.level]))
    count = max((n for n in range(FEWEST_WAYS, 25) if rounds_cost_samples(n) <= left), default=FEWEST_WAYS)
    fields = {one: ways_field(space, one, [c.arm.clients for c in ranked[one][:2]], count) for one in both}
    ranked = yield from halve(fields, limit_ms)
    return Tuned(ranked[space.level][0], ranked[space.baseline][0])


def halve(
    fields: Mapping[Level, Sequence[Contestant]], limit_ms: float
) -> Generator[Round, Mapping[Contestant, Score], dict[Level, list[Contestant]]]:
    """Halve each level's field until one is left; those of the last round, best first."""
    left = {one: list(field) for one, field in fields.items()}
    blocks = 1
    while True:
        scores = yield Round(tuple(c for group in left.values() for c in group), blocks)
        ranked = {one: ranking([c for c in group if c in scores], scores, limit_ms) for one, group in left.items()}
        for one, group in ranked.items():
            if not group:
                raise TargetError(f"no sample of {one} could be measured while tuning", "the record says why")
        left = {one: group[: max(1, len(group) // 2)] for one, group in ranked.items()}
        if max(map(len, left.values())) == 1:
            return ranked
        blocks *= 2


def ranking(group: Sequence[Contestant], scores: Mapping[Contestant, Score], limit_ms: float) -> list[Contestant]:
    """Best first: those under the limit by throughput, then the others by latency."""

    def rank(contestant: Contestant) -> tuple[bool, float]:
        score = scores[contestant]
        over = score.p95_ms > limit_ms
        return over, (score.p95_ms if over else -score.log_tps)

    return sorted(group, key=rank)


def rounds_cost_samples(count: int) -> int:
    """Samples it takes to halve so many contestants of both levels to one: each round costs about the same.

    >>> rounds_cost_samples(8)
    48
    """
    samples, blocks = 2 * count, 1
    while count > 3:
        count, blocks = count // 2, blocks * 2
        samples += 2 * count * blocks
    return samples


def words(contestant: Contestant) -> str:
    """The contestant in short words."""
    arm = contestant.arm
    pool = f", pool {arm.pool}" if arm.pool else ""
    return f"{arm.level}, {arm.clients} clients, {arm.route}{pool}, {contestant.setting.text}"
