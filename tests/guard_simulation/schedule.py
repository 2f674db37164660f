"""A schedule: the cluster, and faults tied to times or to steps of the guard or of Patroni; drawn from a seed."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from random import Random
from typing import Any

from tests.guard_simulation.patroni_keys import Times

FOREVER = 1000.0
BASE_AT = 2.0
GUARDS = ("walproof-guard-1", "walproof-guard-2")


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens, and to which member or guard.

    after: the step it waits for ("" for none). at: seconds after that, or after the start.
    """

    kind: str
    who: str
    at: float
    after: str = ""
    lasts: float = FOREVER
    what: Any = None

    def __str__(self) -> str:
        when = f"{self.at:.2f} s after '{self.after}'" if self.after else f"at {self.at:.2f}"
        lasts = f", for {self.lasts:.2f} s" if self.lasts < FOREVER else ""
        what = f" {self.what}" if self.what is not None else ""
        return f"{when}: {self.kind} {self.who}{what}{lasts}"


@dataclass(frozen=True, slots=True)
class Schedule:
    """A cluster and what befalls it.

    due: seconds after some fault, by its place, within which another member leads. untouched: no guard may act.
    plain: nothing happens but what is meant.
    """

    seed: int
    due: tuple[tuple[int, float], ...] = ()
    untouched: bool = False
    plain: bool = False
    synchronous: bool = True
    dry: tuple[str, ...] = ()
    """Guards that only say what they would do."""
    policy: dict[str, Any] = field(default_factory=dict)
    """Of every guard, where it is not the simulation's."""
    odd: dict[str, Any] = field(default_factory=dict)
    """What a member says that is not as usual, by "what member": version; lacks, named, address of what is asked."""
    limit: tuple[float, float] = (0.0, 0.0)
    """The limit that a former seal set, and seconds since then."""
    members: int = 3
    k: int = 1
    any_of: bool = True
    strict: bool = False
    failsafe: bool = False
    guards: int = 1
    times: Times = field(default_factory=Times)
    interval_s: float = 0.2
    tags: dict[str, dict[str, Any]] = field(default_factory=dict)
    watchdogs: tuple[str, ...] = ()
    """Whose watchdog is required and does not open."""
    delays: dict[str, float] = field(default_factory=dict)
    """recovery_min_apply_delay by member."""
    skews: tuple[float, ...] = (0.0, 0.0)
    least_ttl: float = 2.0
    """No lease that etcd grants is shorter."""
    faults: tuple[Fault, ...] = ()

    def __str__(self) -> str:
        given = {f.name: getattr(self, f.name) for f in fields(self)} | {"faults": ()}
        usual = Schedule(self.seed)
        unusual = [f"{name} {value}" for name, value in given.items() if value != getattr(usual, name)]
        lines = [f"seed {self.seed}: {', '.join(unusual) or 'as usual'}"]
        return "\n".join((*lines, *(f"  fault {i}: {f}" for i, f in enumerate(self.faults, 1))))


def draw(seed: int) -> Schedule:
    """The schedule of a seed."""
    random = Random(f"schedule {seed}")
    drawn = {0: _due, 1: _due, 2: _untouched, 3: _stands_still}.get(seed % 25, _any)(seed, random)
    return drawn if drawn.untouched else replace(drawn, least_ttl=random.choice((1.0, 2.0, 2.0, 3.0)))


def _size(random: Random) -> dict[str, Any]:
    members = random.choice((3, 3, 4))
    return {
        "members": members,
        "k": random.choice((1, 1, 2) if members == 3 else (1, 2, 2)),
        "any_of": random.random() < 0.75,
        "strict": random.random() < 0.5,
        "times": random.choices((Times(), Times(loop_wait=1.0), Times(30.0, 10.0, 10.0)), (7, 2, 1))[0],
        "interval_s": random.choice((0.1, 0.2, 0.2, 0.5)),
    }


def _due(seed: int, random: Random) -> Schedule:
    """The leader is gone and what else happens a guard copes with: its successor leads in time."""
    gone = Fault(random.choice(("kill", "isolate", "freeze", "power-cut")), "n1", BASE_AT + random.random())
    simple = Schedule(seed, due=((0, 8.0),), plain=True, faults=(gone,), **{**_size(random), "times": Times()})
    return replace(simple, **_DUE[(seed // 25 * 2 + seed % 25) % len(_DUE)](random, gone))


def _stands_still(seed: int, random: Random) -> Schedule:
    """The guard stands still at a step of its seal or hand-over, or an answer is lost; keys change meanwhile."""
    gone = Fault(random.choice(("kill", "isolate")), "n1", BASE_AT + random.random())
    step = f"{GUARDS[0]} {random.choice(_STEPS_OF_LOCK)}"
    stands = Fault("freeze guard", GUARDS[0], 0.0, step, lasts=random.choice((0.9, 0.9, 0.9, 2.4, 4.0, 6.5, 9.0)))
    if random.random() < 0.2:
        stands = Fault("lose answers", GUARDS[0], 0.0, step, 0.0, 1)
    standby = random.choice(("n2", "n3"))
    kind, who, what = random.choice(
        (
            ("new lease", standby, None), ("elect", "etcd", 0.5), ("switchover", "n1", None),
            ("node count", "cluster", 2), ("node count", "cluster", 1), ("failover", "n1", standby), ("none", "", None),
        )
    )  # fmt: skip
    meanwhile = (Fault(kind, who, 0.1, step, FOREVER, what),) if who else ()
    return Schedule(seed, faults=(gone, stands, *meanwhile), **_size(random))


_STEPS_OF_LOCK = (
    "/lease/grant asked", "/kv/put asked", "/kv/txn asked", "/kv/txn asked", "hand-over asked", "hand-over asked"
)  # fmt: skip


def _untouched(seed: int, random: Random) -> Schedule:
    """The leader is well, or the guard may not act: it leaves the key alone."""
    gone = Fault(random.choice(("kill", "isolate")), "n1", BASE_AT + random.random())
    simple = Schedule(seed, untouched=True, plain=True, faults=(gone,), **{**_size(random), "times": Times()})
    return replace(simple, **_UNTOUCHED[seed // 25 % len(_UNTOUCHED)](random, gone))


def _then(
    kind: str, step: str, lasts: float = FOREVER, what: Any = None, who: str = GUARDS[0], at: float = 0.0
) -> Fault:
    """After a step of the first guard."""
    return Fault(kind, who, at, f"{GUARDS[0]} {step}", lasts, what)


def _of_two(gone: Fault, *more: Fault) -> dict[str, Any]:
    """Two guards, the second one later."""
    return {"guards": 2, "faults": (gone, Fault("freeze guard", GUARDS[1], gone.at, lasts=1.6), *more)}


def _cut(random: Random, _gone: Fault) -> dict[str, Any]:
    faults = []
    for guard in GUARDS:
        kind = random.choice(("cut from", "cut from", "cut from etcd", "slow answers"))
        what, lasts = random.choice(("n1", "n1", "n1", "n2", "n3")), random.choice((1.0, 3.0, 10.0))
        faults.append(Fault(kind, guard, BASE_AT + random.random(), lasts=lasts, what=what))
    return {"guards": random.choice((1, 2)), "faults": tuple(faults)}


_LOSES = ("says suspect", "/kv/txn asked", "/lease/grant asked", "says sealed")
_ALL_NEEDED = {"members": 3, "k": 1, "any_of": True}
_Case = Callable[[Random, Fault], dict[str, Any]]
_DUE: tuple[_Case, ...] = (
    lambda _r, _gone: {},
    lambda r, _gone: {"guards": 2, "skews": (0.0, r.choice((0.0, 3.0, 60.0)))},
    # Another guard goes on.
    lambda r, gone: {
        **_of_two(gone, _then(r.choice(("kill guard", "freeze guard")), "says sealed")), "due": ((0, 11.0),)
    },
    lambda r, gone: {"faults": (gone, _then("lose answers", r.choice(_LOSES), 0.0, 1)), "due": ((0, 11.0),)},
    # A standby that is behind, or does not come to wait.
    lambda r, gone: {
        **_ALL_NEEDED,
        "faults": (gone, Fault("cut stream", "n3", gone.at - 0.5 * r.random(), lasts=r.choice((1.0, 3.0)))),
    },
    lambda r, gone: {
        "members": 4, "k": 2, "any_of": True,
        "faults": (gone, Fault(r.choice(("freeze", "freeze patroni", "pause replay", "pause replay")), "n4", gone.at)),
    },
    lambda r, _gone: {
        "any_of": True,
        "tags": {"n3": r.choice(({"failover_priority": 5}, {"failover_priority": "3"}, {"clonefrom": True}))},
    },
    # Another leader goes too, late enough or too soon.
    lambda r, gone: {
        "members": 4, "k": r.choice((1, 2)), "due": ((0, 8.0), (1, 9.0)),
        "faults": (gone, _then("kill", "says handed", who="leader", at=r.choice((19.0, 23.0)))),
    },
    lambda r, gone: {
        "members": 4, "faults": (gone, _then("kill", "says handed", who="leader", at=r.choice((6.0, 9.0)))),
    },
    lambda _r, gone: {
        "members": 4, "faults": (gone, _then("kill", "says handed", who="leader")), "due": (),
    },
    lambda _r, gone: {"faults": (gone, Fault("scheduled switchover", "n1", 0.5))},
    lambda _r, gone: {"faults": (gone, _then("elect", "/lease/timetolive asked", what=0.2, who="etcd"))},
    # Before 4.0 Patroni has no quorum mode.
    lambda _r, _gone: {"odd": {f"version n{i}": "3.0.3" for i in range(1, 5)}, "any_of": False},
    # What a guard knows for five seconds only.
    lambda _r, gone: {"policy": {"learns_s": None}, "faults": (replace(gone, at=7.0),)},
    lambda r, gone: {"policy": {"learns_s": None}, "faults": (replace(gone, at=r.choice((2.2, 4.9))),), "due": ()},
    lambda r, _gone: {"limit": r.choice(((20.0, 30.0), (3000.0, 4000.0)))},
    # The guard starts anew, sees nothing, is a dry run.
    lambda r, gone: {
        "faults": (gone, _then("kill guard", r.choice(("says sealed", "/kv/txn done", "hand-over asked")), 0.5))
    },
    lambda _r, gone: {"faults": (gone, _then("cut from etcd", "says handed", 3.0))},
    lambda _r, gone: {**_of_two(gone, _then("kill guard", "says sealed")), "dry": GUARDS[1:], "due": ()},
    lambda r, gone: {
        "members": 4, "k": 1, "any_of": True, "due": (),
        "faults": (
            gone, _then("tag", "says suspect", what={"replicatefrom": "n1"}, who="n3"),
            Fault("freeze patroni", "n4", gone.at - 0.1, lasts=r.choice((4.0, 6.0))),
        ),
    },
    lambda _r, gone: {
        "faults": (replace(gone, lasts=10.0), Fault("node count", "cluster", 1.2, lasts=0.0, what=1)), "due": (),
    },
)  # fmt: skip
_UNTOUCHED: tuple[_Case, ...] = (
    _cut,
    lambda r, gone: {**_cut(r, gone), "interval_s": 20.0},
    lambda r, gone: {"faults": (replace(gone, kind=r.choice(("freeze", "isolate")), lasts=0.6),)},
    lambda r, gone: {"faults": (Fault("freeze guard", GUARDS[0], gone.at, lasts=r.choice((1.0, 3.0, 25.0))),)},
    lambda _r, gone: {"faults": (Fault("switchover", "n1", gone.at, what="n2"),)},
    lambda _r, _gone: {"synchronous": False},
    lambda _r, _gone: {"dry": GUARDS},
    lambda _r, _gone: {"odd": {"config": {"pause": True}}},
    lambda r, _gone: {"odd": {"version n3": r.choice(("3.0.2", "2.1.9", ""))}},
    lambda _r, _gone: {**_ALL_NEEDED, "odd": {"lacks n3": "GRANT pg_monitor"}},
    lambda _r, _gone: {**_ALL_NEEDED, "odd": {"named n3": "n2"}},
    lambda _r, _gone: {**_ALL_NEEDED, "odd": {"address n3": "n2:5432"}},
    lambda _r, _gone: {"limit": (60.0, 20.0)},
    lambda r, _gone: {"least_ttl": r.choice((4.0, 8.0))},
    # The leader wrote more than either standby has, or may lack.
    lambda _r, gone: {
        "members": 3, "interval_s": 0.1, "odd": {"config": {"maximum_lag_on_failover": 2}},
        "faults": (
            Fault("cut stream", "n2", 1.6), Fault("cut stream", "n3", 1.6), replace(gone, at=gone.at + 3.0)
        ),
    },
)  # fmt: skip
_LEADER = ("kill", "isolate", "isolate", "freeze", "power-cut", "suspect", "suspect", "suspect")


def _any(seed: int, random: Random) -> Schedule:
    """Anything may happen, at any time and at the steps at which it matters: nothing is lost by the guard."""
    size = _size(random)
    standbys = [f"n{i + 2}" for i in range(size["members"] - 1)]
    guards = 2 if random.random() < 0.3 else 1
    base = BASE_AT + random.random()
    faults = _leader_gone(random, base)
    if random.random() < 0.05:
        # A leader that has led for a moment only, and /sync may not name it yet.
        base += 1.5 + random.random() * 2
        faults = [Fault("kill", "leader", base), Fault("switchover", "n1", 1.3, lasts=0.0, what="n2")]
    if random.random() < 0.5:
        faults.append(_behind(random, standbys, base))
    faults += [_before(random, standbys, base) for _ in range(random.choice((0, 0, 0, 1)))]
    faults += [_around(random, standbys, guards, base) for _ in range(random.choice((0, 1, 1, 2, 2, 3)))]
    delays = {}
    if random.random() < 0.12:
        slow = random.choice(standbys)
        delays[slow] = random.choice((0.5, 5.0))
        if random.random() < 0.5:
            faults.append(Fault("crash-restart", slow, base + random.random() * 2 - 1))
    tags = {}
    if random.random() < 0.3:
        who = random.choice(standbys)
        tags[who] = random.choice(_TAGS if random.random() < 0.6 else ({"replicatefrom": "n1"},))
        if tags[who].get("replicatefrom") == who:
            tags[who] = {"nofailover": True}
    return Schedule(
        seed,
        failsafe=random.random() < 0.15,
        guards=guards,
        tags=tags,
        watchdogs=(random.choice(standbys),) if random.random() < 0.05 else (),
        delays=delays,
        skews=(random.choice((0.0, 3.0, -3.0)), random.choice((0.0, 60.0))),
        faults=tuple(faults),
        **size,
    )


_TAGS: tuple[dict[str, Any], ...] = (
    {"replicatefrom": "n2"},
    {"replicatefrom": "n3"},
    {"nofailover": True},
    {"failover_priority": 0},
    {"nosync": True},
    {"failover_priority": 5},
)


def _leader_gone(random: Random, base: float) -> list[Fault]:
    """What makes the leader suspicious: it is gone, for a while or for good, or it only seems so."""
    kind = random.choice(_LEADER)
    lasts = FOREVER if random.random() < 0.4 else random.choice((1.5, 2.5, 4.0, 8.0, 25.0))
    if kind != "suspect":
        return [Fault(kind, "n1", base, lasts=lasts)]
    seems = Fault(kind, "n1", base, lasts=random.choice((1.5, 2.0, 3.0, 4.0)))
    frozen = Fault("freeze patroni", "n1", base - 0.1, lasts=random.choice((1.5, 2.0, 3.0, 5.0, 8.0)))
    return [seems, frozen] if random.random() < 0.7 else [seems]


def _behind(random: Random, standbys: list[str], base: float) -> Fault:
    """A standby that lacks some of what the others hold when the leader goes."""
    kind, what = random.choice((("cut stream", None), ("slow stream", 1.0), ("slow stream", 4.0), ("freeze", None)))
    lasts = random.choice((1.0, 2.0, 4.0, 8.0, 25.0))
    return Fault(kind, random.choice(standbys), base - random.random() ** 2 * 1.5, lasts=lasts, what=what)


def _before(random: Random, standbys: list[str], base: float) -> Fault:
    """Something else that stands when the leader goes."""
    standby, at = random.choice(standbys), base - random.random() * 1.5
    lasts = random.choice((1.0, 3.0, 8.0, FOREVER))
    kind, who, what = random.choice(
        (
            ("pause replay", standby, None),
            ("crash-restart", standby, None),
            ("slow watch", standby, 2.0),
            ("tag", standby, {"replicatefrom": "n1"}),
            ("tag", standby, {"nosync": True}),
            ("scheduled switchover", "n1", standby),
            ("node count", "cluster", random.choice((1, 2))),
            ("slow answers", GUARDS[0], standby),
        )
    )
    return Fault(kind, who, at, lasts=lasts, what=what)


_STEPS_OF_GUARD = (
    "says suspect", "says suspect", "says sealed", "says sealed", "says handed", "/kv/txn asked", "/kv/txn done",
    "hand-over asked", "hand-over asked", "/lease/grant asked", "/lease/timetolive asked", "/lease/keepalive asked",
    "says not",
)  # fmt: skip
_STEPS_OF_MEMBER = (
    "reads", "is about to follow nobody", "is about to follow n1", "promotes", "is about to take the leader key",
    "has no key of its own", "demotes", "about to write quorum", "about to write sync",
)  # fmt: skip


def _around(random: Random, standbys: list[str], guards: int, base: float) -> Fault:
    """What comes while the guard is at work: a stall at a step, or anything soon after one."""
    guard, member = random.choice(GUARDS[:guards]), random.choice(("n1", *standbys))
    short, long = random.choice((0.2, 0.5, 1.0, 2.0, 4.0)), random.choice((3.0, 10.0, 22.0, 30.0))
    soon = random.choice((0.0, random.random() * 0.3, random.random(), random.random() * 4))
    after = f"{guard} {random.choice(_STEPS_OF_GUARD)}"
    match random.choice("ggmmmaaaaat"):
        case "g":
            kind, lasts, what = random.choice(
                (("freeze guard", short, None), ("freeze guard", long, None), ("kill guard", FOREVER, None),
                 ("lose answers", 0.0, random.choice((1, 1, 3))))
            )  # fmt: skip
            return Fault(kind, guard, random.choice((0.0, 0.0, soon)), after, lasts, what)
        case "m":
            step = f"{member} {random.choice(_STEPS_OF_MEMBER)}"
            kind = random.choice(("freeze patroni", "freeze patroni", "freeze"))
            return Fault(kind, member, 0.0, step, min(random.choice((short, long)), 6.0))
        case "a":
            return replace(_something(random, standbys, guard), at=soon, after=after)
        case _:
            return replace(_something(random, standbys, guard), at=base + random.random() ** 2 * 6)


def _something(random: Random, standbys: list[str], guard: str) -> Fault:
    standby, member = random.choice(standbys), random.choice(("n1", *standbys))
    short, long = random.choice((0.2, 0.5, 1.0, 2.0, 4.0)), random.choice((3.0, 10.0, 22.0, 30.0))
    either = random.choice((short, long))
    kind, who, lasts, what = random.choice(
        (
            ("crash-restart", standby, 0.0, None),
            ("crash-restart", standby, 0.0, None),
            ("crash-restart", standby, 0.0, None),
            ("freeze", member, short, None),
            ("isolate", member, short, None),
            ("freeze patroni", member, min(short * 2, 6.0), None),
            ("slow watch", standby, short, short),
            ("slow stream", standby, long, short),
            ("cut stream", standby, either, None),
            ("pause replay", standby, either, None),
            ("slow answers", guard, long, standby),
            ("cut from", guard, short, member),
            ("elect", "etcd", 0.0, short),
            ("pause", "cluster", either, None),
            ("pause", "cluster", either, None),
            ("switchover", "n1", 0.0, random.choice((standby, None))),
            ("failover", "n1", 0.0, standby),
            ("node count", "cluster", 0.0, random.choice((1, 2))),
            ("kill", standby, either, None),
            ("tag", standby, FOREVER, {"nosync": True}),
        )
    )
    return Fault(kind, who, 0.0, "", lasts, what)
