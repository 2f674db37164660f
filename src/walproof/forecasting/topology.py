"""Where members stand and what their commits wait for; which failure hits which members. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from walproof.errors import UsageError
from walproof.forecasting.failure_rates import Failure, Failures, Place
from walproof.model.guarantee import Level, QuorumKind

MEMBERS = range(2, 8)
_HINT = "for instance --layout z1,z2,z3 or --layout r1/z1,r1/z2,r2/z1 (region/zone/rack/server)"


@dataclass(frozen=True, slots=True)
class Site:
    """Where a member or a further voter of the DCS stands, each place by its full path."""

    region: str
    zone: str
    rack: str
    server: str

    def at(self, place: Place) -> str:
        """The path of its place of that kind."""
        return str(getattr(self, place.value))


@dataclass(frozen=True, slots=True)
class Configuration:
    """What commits wait for. quorum None: asynchronous, or a level that waits for no standby."""

    level: Level
    quorum_kind: QuorumKind | None = None
    k: int = 0
    strict: bool = True

    @property
    def waits(self) -> bool:
        """Whether a commit waits for standbys."""
        return self.level.remote and self.quorum_kind is not None and self.k > 0

    @property
    def text(self) -> str:
        """As tables show it.

        >>> Configuration(Level.ON, QuorumKind.ANY, 1).text, Configuration(Level.LOCAL).text
        ('on ANY 1 strict', 'local')
        """
        mode = "strict" if self.strict else "degrading"
        quorum = f" {self.quorum_kind} {self.k} {mode}" if self.waits else ""
        return f"{self.level}{quorum}"


@dataclass(frozen=True, slots=True)
class Topology:
    """Where members stand, and voters of the DCS without a database. `home`: the mask of members of which one
    leads when all are well, each equally often; 0: any of them.
    """

    members: tuple[Site, ...]
    witnesses: tuple[Site, ...] = ()
    home: int = 0

    @property
    def voters(self) -> tuple[Site, ...]:
        """Where the DCS's voters stand: one with each member, then the witnesses."""
        return (*self.members, *self.witnesses)

    @property
    def majority(self) -> int:
        """How many voters the DCS needs."""
        return len(self.voters) // 2 + 1


@dataclass(frozen=True, slots=True)
class Cause:
    """One thing that may fail: a kind of failure at one place. Masks: bit i is member (or voter) i."""

    name: str
    kind: int
    members: int
    voters: int
    per_year: float


def site(text: str, number: int) -> Site:
    """The place that `region/zone/rack/server` names; what is left out on the right is its own.

    One word is a zone of one region. UsageError where it is not such a text.
    """
    parts = [part.strip() for part in text.split("/")]
    if not text.strip() or "" in parts or len(parts) > 4:
        raise UsageError(f"{text!r} is not a place", _HINT)
    if len(parts) == 1:
        parts = ["r1", *parts]
    named = [*parts, *[f"own-{number}"] * (4 - len(parts))]
    return Site(*("/".join(named[: depth + 1]) for depth in range(4)))


def topology(layout: str, witnesses: str = "", home: str = "") -> Topology:
    """The topology of comma-separated places; UsageError unless 2 to 7 members stand somewhere, one of them at home."""
    members = tuple(site(text, i) for i, text in enumerate(layout.split(",")))
    if len(members) not in MEMBERS:
        raise UsageError(f"a forecast is made for 2 to 7 members, not {len(members)}", _HINT)
    further = [text for text in witnesses.split(",") if text.strip()]
    if len(further) > 4:
        raise UsageError(f"at most 4 witnesses, not {len(further)}", "give an odd number of voters in all")
    homes = home and sum(1 << i for i, member in enumerate(members) if f"{member.server}/".startswith(f"{home}/"))
    if home and not homes:
        raise UsageError(
            f"no member of {layout} stands at {home}", "name a place of the layout in full, for instance r1/z1"
        )
    return Topology(members, tuple(site(text, len(members) + i) for i, text in enumerate(further)), homes or 0)


def layout_of(nodes: Iterable[str]) -> str:
    """--layout of members on these nodes; each node is taken to be in a zone and rack of its own. "" unless 2 to 7.

    >>> layout_of(["a", "a", "b"])
    'r1/z1/k1/a,r1/z1/k1/a,r1/z2/k2/b'
    """
    every = list(nodes)
    number = {node: i for i, node in enumerate(dict.fromkeys(every), 1)}
    places = [f"r1/z{number[node]}/k{number[node]}/{node}" for node in every]
    return ",".join(places) if len(places) in MEMBERS else ""


def check(where: Topology, what: Configuration) -> None:
    """UsageError when the quorum cannot be had there even with every member up."""
    standbys = len(where.members) - 1
    if what.level.remote and what.quorum_kind is not None and not 1 <= what.k <= standbys:
        raise UsageError(
            f"{what.quorum_kind} {what.k} is impossible with {len(where.members)} members: "
            f"{'there is 1 standby' if standbys == 1 else f'there are {standbys} standbys'}",
            f"k is 1 to {standbys}",
        )


def causes(where: Topology, failures: Failures) -> tuple[Cause, ...]:
    """Everything that may fail there: each kind at each place that holds a member or a voter."""
    possible = []
    for kind, failure in enumerate(failures.kinds):
        if failure.planned or failure.per_year == 0:
            continue
        for name, members, voters in _places(where, failure):
            if members or voters:
                possible.append(Cause(f"{failure.name} at {name}", kind, members, voters, failure.per_year))
    return tuple(possible)


def _places(where: Topology, failure: Failure) -> list[tuple[str, int, int]]:
    """Name, members and voters of each place that such a failure may hit."""
    if failure.place is Place.MEMBER:
        return [(f"member {i + 1}", 1 << i, failure.dcs << i) for i in range(len(where.members))]
    places = []
    for name in dict.fromkeys(voter.at(failure.place) for voter in where.voters):
        inside = [i for i, voter in enumerate(where.voters) if voter.at(failure.place) == name]
        if failure.cut and len(inside) >= where.majority:
            # The side with the majority goes on: those outside are the ones that are cut off.
            inside = [i for i in range(len(where.voters)) if i not in inside]
        voters = sum(1 << i for i in inside)
        members = voters & ((1 << len(where.members)) - 1)
        places.append((name, members, voters if failure.dcs else 0))
    return places
