"""Every recipe of a choice, by name."""

from walproof.advising.recipes import access, cnpg, patroni, plain
from walproof.advising.recipes.settings import Recipe, check_names
from walproof.errors import UsageError
from walproof.model.advice import Choice, ClusterProfile


def recipes(choice: Choice, cluster: ClusterProfile) -> dict[str, Recipe]:
    """All of them, that of the cluster's manager first; UsageError for what walproof never writes."""
    check_names(cluster)
    made = (
        patroni.patroni(choice, cluster),
        plain.alter_system(choice, cluster),
        plain.postgresql_conf(choice, cluster),
        cnpg.cnpg_cluster(choice, cluster),
        cnpg.pooler(choice),
        access.pgbouncer(choice, cluster),
        access.haproxy(choice, cluster),
        access.application(choice, cluster),
    )
    first = "patroni" if cluster.manager == "patroni" else "plain"
    return {r.name: r for r in sorted(made, key=lambda r: r.name != first)}


def recipe(choice: Choice, cluster: ClusterProfile, name: str) -> Recipe:
    """The recipe of that name; UsageError lists them."""
    known = recipes(choice, cluster)
    if name not in known:
        raise UsageError(f"there is no recipe {name!r}", "choose " + ", ".join(known))
    return known[name]
