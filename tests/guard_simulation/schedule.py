"""A schedule: the cluster, and faults tied to times or to steps of the guard or of Patroni; drawn from a seed."""

from dataclasses import dataclass, field, replace
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
    """

    seed: int
    due: tuple[tuple[int, float], ...] = ()
    untouched: bool = False
    synchronous: bool = True
    dry_run: bool = False
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
    faults: tuple[Fault, ...] = ()

    def __str__(self) -> str:
        kind = "ANY" if self.any_of else "FIRST"
        words = [f"seed {self.seed}: {self.members} members, {kind} {self.k} of {self.members - 1}"]
        words += [word for word, on in (("strict", self.strict), ("failsafe_mode", self.failsafe)) if on]
        words.append(f"{self.guards} guards")
        t = self.times
        words.append(f"ttl {t.ttl:g}, loop_wait {t.loop_wait:g}, retry_timeout {t.retry_timeout:g}")
        words += [f"tags of {m}: {tags}" for m, tags in self.tags.items()]
        words += [f"watchdog of {m} required, not to be opened" for m in self.watchdogs]
        words += [f"recovery_min_apply_delay of {m}: {s:g} s" for m, s in self.delays.items()]
        lines = [", ".join(words)]
        return "\n".join((*lines, *(f"  fault {i}: {f}" for i, f in enumerate(self.faults, 1))))


def draw(seed: int) -> Schedule:
    """The schedule of a seed."""
    random = Random(f"schedule {seed}")
    return {0: _due, 1: _due, 2: _untouched, 3: _stands_still}.get(seed % 25, _any)(seed, random)


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
    simple = Schedule(seed, due=((0, 8.0),), faults=(gone,), **{**_size(random), "times": Times()})
    first, second = GUARDS
    late = Fault("freeze guard", second, gone.at, lasts=1.6)
    match random.choice(
        ("", "", "", "two", "resumed", "lost", "behind", "tags", "again", "soon again", "scheduled", "elected")
    ):
        case "two":
            return replace(simple, guards=2, skews=(0.0, random.choice((0.0, 3.0, 60.0))))
        case "resumed":
            dies = Fault(random.choice(("kill guard", "freeze guard")), first, 0.0, f"{first} says sealed")
            return replace(simple, guards=2, faults=(gone, late, dies), due=((0, 11.0),))
        case "lost":
            lost = Fault("lose answers", first, 0.0, f"{first} {random.choice(_LOSES)}", 0.0, 1)
            return replace(simple, faults=(gone, lost), due=((0, 11.0),))
        case "behind":
            behind = Fault("cut stream", "n3", gone.at - 0.5 * random.random(), lasts=random.choice((1.0, 3.0)))
            stuck = Fault(random.choice(("freeze", "freeze patroni")), "n4", gone.at)
            faults = (gone, behind) if simple.members == 3 else (gone, stuck)
            wanted: dict[str, Any] = {"members": simple.members, "k": 1 if simple.members == 3 else 2, "any_of": True}
            return replace(simple, faults=faults, **wanted)
        case "tags":
            tags = random.choice(({"failover_priority": 5}, {"failover_priority": "3"}, {"clonefrom": True}))
            return replace(simple, tags={"n3": tags}, any_of=True)
        case "again":
            again = Fault("kill", "leader", random.choice((19.0, 23.0)), f"{first} says handed")
            return replace(simple, members=4, k=1, any_of=False, faults=(gone, again), due=((0, 8.0), (1, 9.0)))
        case "soon again":
            again = Fault("kill", "leader", random.choice((6.0, 9.0)), f"{first} says handed")
            return replace(simple, members=4, faults=(gone, again))
        case "scheduled":
            return replace(simple, faults=(gone, Fault("scheduled switchover", "n1", 0.5)))
        case "elected":
            elected = Fault("elect", "etcd", 0.0, f"{first} /lease/timetolive asked", what=0.2)
            return replace(simple, faults=(gone, elected))
    return simple


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
    size = {**_size(random), "times": Times()}
    names = [f"n{i + 1}" for i in range(size["members"])]
    gone = Fault(random.choice(("kill", "isolate")), "n1", BASE_AT + random.random())
    match random.choice(
        ("cut", "cut", "idle", "idle", "short", "asynchronous", "paused", "switchover", "dry run", "guard")
    ):
        case "asynchronous":
            return Schedule(seed, untouched=True, synchronous=False, faults=(gone,), **size)
        case "dry run":
            return Schedule(seed, untouched=True, dry_run=True, faults=(gone,), **size)
        case "paused":
            paused = Fault("pause", "cluster", 1.0, lasts=FOREVER)
            return Schedule(seed, untouched=True, faults=(gone, paused), **size)
        case "short":
            short = Fault(random.choice(("freeze", "isolate")), "n1", gone.at, lasts=0.6)
            return Schedule(seed, untouched=True, faults=(short,), **size)
        case "guard":
            frozen = Fault("freeze guard", GUARDS[0], gone.at, lasts=random.choice((1.0, 3.0, 25.0)))
            return Schedule(seed, untouched=True, faults=(frozen,), **size)
        case "switchover":
            asked = Fault("switchover", "n1", gone.at, what="n2")
            return Schedule(seed, untouched=True, faults=(asked,), **size)
        case "idle":
            size["interval_s"] = 20.0
    faults = []
    for guard in GUARDS:
        kind = random.choice(("cut from", "cut from", "cut from etcd", "slow answers"))
        what, lasts = "n1" if random.random() < 0.7 else random.choice(names), random.choice((1.0, 3.0, 10.0))
        faults.append(Fault(kind, guard, BASE_AT + random.random(), lasts=lasts, what=what))
    return Schedule(seed, untouched=True, guards=random.choice((1, 2)), faults=tuple(faults), **size)


_LOSES = ("says suspect", "/kv/txn asked", "/lease/grant asked", "says sealed")
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
