"""In which orders members come back after a fault that took them all: read from --return-order, and by name. Pure."""

from collections.abc import Sequence
from itertools import permutations

from walproof.errors import UsageError
from walproof.model.topology import ClusterView

_MOST = 4
"""Members of which every order is drilled: of five there would be 120."""


def orders(text: str, members: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Every order asked for: of names, or of roles before the fault; UsageError for a word that is neither.

    >>> orders("all", ["n1", "n2"]), orders("standby-1,n1", ["n1", "n2"])
    ((('leader', 'standby-1'), ('standby-1', 'leader')), (('standby-1', 'n1'),))
    """
    roles = ("leader", *(f"standby-{place}" for place in range(1, len(members))))
    words = tuple(word.strip() for word in text.split(",") if word.strip())
    example = f"--return-order {','.join((*roles[1:], roles[0]))}"
    if words == ("all",):
        if len(members) > _MOST:
            raise UsageError(f"{len(members)} members come back in too many orders to drill each", example)
        return tuple(permutations(roles))
    unknown = [word for word in words if word not in (*members, *roles)]
    if unknown or len(set(words)) < len(words) or not words:
        wrong = f"{unknown[0]!r} is no member" if unknown else f"{text!r} is no order of members"
        raise UsageError(wrong, f"{example}; the members are {', '.join(members)}")
    return (words,)


def by_name(order: Sequence[str], view: ClusterView) -> tuple[str, ...]:
    """The members in that order, by who led in the view; those that it does not name come last, by their names.

    () for no order: then all come back at once.
    """
    if not order:
        return ()
    names = sorted(member.name for member in view.members)
    standbys = [name for name in names if name != view.leader]
    roles = {"leader": view.leader or "", **{f"standby-{place}": name for place, name in enumerate(standbys, 1)}}
    named = (word if word in names else roles.get(word, "") for word in order)
    return tuple(name for name in dict.fromkeys((*named, *names)) if name)
