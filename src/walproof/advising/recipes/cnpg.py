"""A choice for CloudNativePG: the Cluster's synchronous section and parameters, and a Pooler."""

from walproof.advising.recipes.settings import Recipe, postgres_settings
from walproof.model.advice import Choice, ClusterProfile
from walproof.model.guarantee import QuorumKind

SOURCE = "https://cloudnative-pg.io/documentation/current/replication/#synchronous-replication"


def cnpg_cluster(choice: Choice, cluster: ClusterProfile) -> Recipe:
    """A Cluster to merge into an existing one; the operator writes synchronous_standby_names itself."""
    instances = max(len(cluster.members), choice.quorum + 2 if choice.strict else choice.quorum + 1, 1)
    durability = "required" if choice.strict else "preferred"
    lines = [
        f"# walproof: {choice.text}; {SOURCE}",
        "apiVersion: postgresql.cnpg.io/v1",
        "kind: Cluster",
        "metadata:",
        "  name: mycluster  # your name",
        "spec:",
        f"  instances: {instances}"
        + ("  # one more than must answer: a restart does not stop writes" if choice.strict else ""),
        "  storage:",
        "    size: 10Gi  # your size",
        "  postgresql:",
    ]
    if choice.quorum:
        lines += [
            "    synchronous:",
            f"      method: {'first' if choice.quorum_kind is QuorumKind.FIRST else 'any'}",
            f"      number: {choice.quorum}",
            f"      dataDurability: {durability}  # preferred lets commits become local when standbys are away",
        ]
        if choice.strict:
            lines.append("      failoverQuorum: true  # promote only when a standby that has every commit is known")
    lines.append("    parameters:")
    lines += [f"      {s.name}: '{s.value}'  # {s.why}" for s in postgres_settings(choice)]
    return Recipe("cnpg", "walproof-cnpg.yaml", "\n".join(lines) + "\n")


def pooler(choice: Choice) -> Recipe:
    """A Pooler with the pool size of the choice."""
    lines = [
        f"# walproof: {choice.text}",
        "apiVersion: postgresql.cnpg.io/v1",
        "kind: Pooler",
        "metadata:",
        "  name: mycluster-rw  # your name",
        "spec:",
        "  cluster:",
        "    name: mycluster  # your name",
        "  instances: 2",
        "  type: rw",
        "  pgbouncer:",
        "    poolMode: transaction  # SET LOCAL holds, SET does not",
        "    parameters:",
        f"      default_pool_size: '{choice.pool or choice.clients}'  # more than this was not faster",
        f"      max_client_conn: '{max(1000, 10 * choice.clients)}'",
    ]
    return Recipe("cnpg-pooler", "walproof-pooler.yaml", "\n".join(lines) + "\n")
