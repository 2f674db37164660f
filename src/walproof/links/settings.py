"""What is configured of links: one setting per direction, tables of them. Pure; opens and sends nothing."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from walproof.errors import UsageError

Direction = tuple[str, str]
"""(source, destination): member names in the lab, IPv4 addresses in the link emulator's process."""

LONGEST_DELAY_S = 10.0
"""Beyond this every program of the cluster times out, and the packets in flight would fill the memory."""
LEAST_RATE_BPS = 8e3


@dataclass(frozen=True, slots=True)
class LinkSetting:
    """One direction: delay and jitter in seconds, loss as a share 0..1, rate in bits per second (None: unlimited)."""

    delay_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0
    rate_bps: float | None = None
    cut: bool = False

    @property
    def plain(self) -> bool:
        """True where nothing is configured: the kernel's own path serves."""
        return self == LinkSetting()


@dataclass(frozen=True, slots=True)
class Change:
    """What to change in a direction; None changes nothing. An infinite rate removes the limit."""

    delay_s: float | None = None
    jitter_s: float | None = None
    loss: float | None = None
    rate_bps: float | None = None
    cut: bool | None = None

    def onto(self, old: LinkSetting) -> LinkSetting:
        """The direction after the change.

        >>> Change(loss=0.5).onto(LinkSetting(delay_s=0.005))
        LinkSetting(delay_s=0.005, jitter_s=0.0, loss=0.5, rate_bps=None, cut=False)
        """
        given: dict[str, Any] = {name: value for name, value in asdict(self).items() if value is not None}
        if given.get("rate_bps") == float("inf"):
            given["rate_bps"] = None
        new = replace(old, **given)
        check(new)
        return new


def check(setting: LinkSetting) -> None:
    """UsageError for what no link can have: negative or endless delay, loss above 100 %, a rate of nothing."""
    hint = "write for example --rtt 10ms --jitter 1ms --loss 0.1% --rate 100mbit/s"
    if not 0 <= setting.delay_s <= LONGEST_DELAY_S:
        raise UsageError(f"a delay of {setting.delay_s:g} s is not between 0 and {LONGEST_DELAY_S:g} s", hint)
    if not 0 <= setting.jitter_s <= LONGEST_DELAY_S:
        raise UsageError(f"a jitter of {setting.jitter_s:g} s is not between 0 and {LONGEST_DELAY_S:g} s", hint)
    if not 0 <= setting.loss <= 1:
        raise UsageError(f"a loss of {setting.loss:.0%} is not between 0% and 100%", hint)
    if setting.rate_bps is not None and not setting.rate_bps >= LEAST_RATE_BPS:
        raise UsageError(f"a rate of {setting.rate_bps:g} bit/s is less than {LEAST_RATE_BPS:g} bit/s", hint)


@dataclass(frozen=True, slots=True)
class Links:
    """Everything configured of a lab's links: settings by direction, members cut from all others, of these isolated
    ones from clients too."""

    settings: Mapping[Direction, LinkSetting] = field(default_factory=dict)
    isolated: frozenset[str] = frozenset()
    apart: frozenset[str] = frozenset()

    @property
    def table(self) -> dict[Direction, LinkSetting]:
        """The directions that must pass the link emulator."""
        return {direction: setting for direction, setting in self.settings.items() if not setting.plain}

    @property
    def cuts(self) -> tuple[Direction, ...]:
        return tuple(direction for direction, setting in self.settings.items() if setting.cut)

    def changed(self, directions: Iterable[Direction], change: Change) -> "Links":
        new = {direction: change.onto(self.setting(direction)) for direction in directions}
        return replace(self, settings={**self.settings, **new})

    def cut_off(self, member: str, members: Iterable[str]) -> "Links":
        """With that member cut from all others, both directions; UsageError when it is none of them."""
        known = tuple(members)
        check_members((member,), known)  # `n1..n2`, a direction, is none
        new = self.changed(directions_of((member,), known), Change(cut=True))
        return replace(new, apart=self.apart | {member})

    def with_cuts_of(self, other: "Links") -> "Links":
        """These, and what is cut, apart or isolated in the other ones."""
        both = {**other.settings, **self.settings}
        cut = {d: replace(self.setting(d), cut=self.setting(d).cut or other.setting(d).cut) for d in both}
        return Links(cut, self.isolated | other.isolated, self.apart | other.apart)

    def setting(self, direction: Direction) -> LinkSetting:
        return self.settings.get(direction, LinkSetting())

    def without_cuts(self, member: str | None = None) -> "Links":
        """Without cuts and isolation, of one member or (None) of all; delay, jitter, loss and rate stay.

        Between this member and another one that is cut from all others the cut stays.
        """
        if member is None:
            return Links({d: replace(s, cut=False) for d, s in self.settings.items()})
        apart = self.apart - {member}
        kept = {
            d: replace(s, cut=s.cut and (member not in d or not apart.isdisjoint(d))) for d, s in self.settings.items()
        }
        return Links(kept, self.isolated - {member}, apart)

    def reset(self, directions: Iterable[Direction]) -> "Links":
        """Without delay, jitter, loss and rate in those directions; what is cut stays cut."""
        plain = {direction: LinkSetting(cut=self.setting(direction).cut) for direction in directions}
        return replace(self, settings={**self.settings, **plain})

    def as_json(self) -> dict[str, Any]:
        """For the file in the lab's folder."""
        return {
            "settings": [{"from": a, "to": b, **asdict(setting)} for (a, b), setting in sorted(self.table.items())],
            "isolated": sorted(self.isolated),
            "apart": sorted(self.apart),
        }


def links_of(data: Mapping[str, Any]) -> Links:
    """The inverse of `Links.as_json`."""
    settings = {
        (row["from"], row["to"]): LinkSetting(**{k: v for k, v in row.items() if k not in ("from", "to")})
        for row in data["settings"]
    }
    for setting in settings.values():
        check(setting)
    return Links(settings, frozenset(data["isolated"]), frozenset(data.get("apart", data["isolated"])))


def all_directions(members: Iterable[str]) -> tuple[Direction, ...]:
    """Every ordered pair of different members.

    >>> all_directions(("n1", "n2"))
    (('n1', 'n2'), ('n2', 'n1'))
    """
    names = tuple(members)
    return tuple((a, b) for a in names for b in names if a != b)


def check_members(names: Iterable[str], known: tuple[str, ...]) -> None:
    """UsageError for the first name that no member of the lab has."""
    for name in names:
        if name not in known:
            raise UsageError(f"no member is called {name!r}", f"members are {', '.join(known)}")


def directions_of(arguments: Iterable[str], members: Iterable[str]) -> tuple[Direction, ...]:
    """The directions that arguments name: none is all, `n1` all of its own, `n1 n3` that pair, `n1..n2` one direction.

    >>> directions_of(("n1..n2",), ("n1", "n2", "n3"))
    (('n1', 'n2'),)
    """
    known, given = tuple(members), tuple(arguments)
    one_way = [(source, destination) for source, dots, destination in (a.partition("..") for a in given) if dots]
    names = tuple(argument for argument in given if ".." not in argument)
    check_members((*names, *(end for direction in one_way for end in direction)), known)
    if len(set(names)) != len(names) or any(a == b for a, b in one_way):
        raise UsageError("a link has two different ends", "name two members, such as n1 n3, or one way: n1..n2")
    directions = list(one_way)
    if len(names) == 1:
        directions += [d for d in all_directions(known) if names[0] in d]
    elif names or not one_way:
        directions += all_directions(names or known)
    return tuple(dict.fromkeys(directions))
