"""Every recipe of a choice, by name."""

from walproof.advising.recipes import access, cnpg, patroni, plain
from walproof.advising.recipes.settings import Recipe
from walproof.errors import UsageError
from walproof.model.advice import Choice, Place


def recipes(choice: Choice, place: Place) -> dict[str, Recipe]:
    """All of them, the target's own manager first."""
    made = (
        patroni.patroni(choice, place),
        plain.alter_system(choice, place),
        plain.postgresql_conf(choice, place),
        cnpg.cluster(choice, place),
        cnpg.pooler(choice),
        access.pgbouncer(choice, place),
        access.haproxy(choice, place),
        access.application(choice, place),
    )
    first = "patroni" if place.manager == "patroni" else "plain"
    return {r.name: r for r in sorted(made, key=lambda r: r.name != first)}


def recipe(choice: Choice, place: Place, name: str) -> Recipe:
    """The recipe of that name; UsageError lists them."""
    known = recipes(choice, place)
    if name not in known:
        raise UsageError(f"there is no recipe {name!r}", "choose " + ", ".join(known))
    return known[name]
