"""A region file: sites and the round trips between them, read into a matrix of links. Sets no link itself."""

import tomllib
from importlib.resources import files
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from walproof.errors import UsageError
from walproof.links.settings import Direction, LinkSetting, all_directions, check
from walproof.machine.foreign_text import from_toml, printable
from walproof.model.units import duration_s

_SHIPPED = files("walproof.links") / "regions"


class RoundTrip(BaseModel):
    """One pair of sites and its round trip, as written."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    between: tuple[str, str]
    rtt: str
    jitter: str = "0ms"


class Regions(BaseModel):
    """A region file. Members take the sites in order, and start over when there are more members than sites."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    title: str
    source: str
    sites: tuple[str, ...]
    within: str = "0.3ms"
    """Round trip between two members of the same site."""
    round_trip: tuple[RoundTrip, ...] = ()
    members: dict[str, str] = {}
    """Which member is where, when the order does not say it."""


def shipped() -> tuple[str, ...]:
    """Names of the region files that come with walproof."""
    return tuple(sorted(f.name.removesuffix(".toml") for f in _SHIPPED.iterdir() if f.name.endswith(".toml")))


def read_regions(name_or_path: str) -> Regions:
    """A shipped region file by name, or any region file by path; UsageError when it cannot be read or parsed."""
    try:
        if name_or_path in shipped():
            text = (_SHIPPED / f"{name_or_path}.toml").read_text()
        else:
            text = Path(name_or_path).read_text()
        return Regions.model_validate(printable(from_toml(text)))
    except OSError as no:
        known = ", ".join(shipped())
        raise UsageError(f"no region file {name_or_path!r} ({no.strerror})", f"name one of {known}, or a file") from no
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as no:
        raise UsageError(f"{name_or_path} is not TOML: {no}", "see `walproof lab link --regions europe`") from no
    except ValidationError as no:
        first = no.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UsageError(
            f"{name_or_path}: {where}: {first['msg']}", "sites = [...], then [[round_trip]] tables"
        ) from no


def matrix(regions: Regions, members: tuple[str, ...]) -> dict[Direction, LinkSetting]:
    """Every direction between members, half the round trip each way; UsageError where the file does not name a pair."""
    site = sites_of(regions, members)
    table = {}
    for a, b in all_directions(members):
        rtt_s, jitter_s = _between(regions, site[a], site[b])
        table[a, b] = LinkSetting(delay_s=rtt_s / 2, jitter_s=jitter_s / 2)
        check(table[a, b])
    return table


def sites_of(regions: Regions, members: tuple[str, ...]) -> dict[str, str]:
    """The site of every member."""
    if not regions.sites:
        raise UsageError("the region file names no site", 'sites = ["london", "paris"]')
    named = regions.members
    for member, site in named.items():
        if member not in members or site not in regions.sites:
            raise UsageError(f"the region file puts {member!r} in {site!r}", f"members are {', '.join(members)}")
    return {m: named.get(m, regions.sites[i % len(regions.sites)]) for i, m in enumerate(members)}


def _between(regions: Regions, one: str, other: str) -> tuple[float, float]:
    if one == other:
        return duration_s(regions.within), 0.0
    for row in regions.round_trip:
        if set(row.between) == {one, other}:
            return duration_s(row.rtt), duration_s(row.jitter)
    raise UsageError(f"the region file does not name {one}–{other}", "add a [[round_trip]] with that pair")
