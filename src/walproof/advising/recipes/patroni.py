"""A choice as Patroni's dynamic configuration, for `patronictl edit-config --apply`."""

from walproof.advising.recipes.settings import Recipe, patroni_settings, postgres_settings, version_of
from walproof.model.advice import Choice, ClusterProfile
from walproof.model.guarantee import QuorumKind

_WHY = {
    "ttl": "a failed leader is replaced after this; Patroni refuses less than 20",
    "loop_wait": "how often every member checks",
    "retry_timeout": "DCS and PostgreSQL may be unreachable this long; loop_wait + 2 × this must not exceed ttl",
    "primary_start_timeout": "a crashed leader is replaced instead of waited for",
    "master_start_timeout": "a crashed leader is replaced instead of waited for (primary_start_timeout since 3.0)",
    "failsafe_mode": "a DCS outage does not stop a leader whose members all answer",
    "synchronous_mode": "Patroni itself names the standbys and promotes only one that has every commit",
    "synchronous_mode_strict": "true: no writes instead of writes on the leader alone",
    "synchronous_node_count": "how many standbys must answer",
}


def written(value: object) -> str:
    """A scalar of YAML; off and on are quoted, else they would be booleans."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"'{value}'" if value in ("on", "off") else str(value)


def patroni(choice: Choice, cluster: ClusterProfile) -> Recipe:
    """The dynamic configuration with a comment on every line."""
    version = version_of(cluster.patroni)
    lines = [
        f"# walproof: {choice.text}",
        "# patronictl -c patroni.yml edit-config CLUSTER --apply walproof-patroni.yaml",
    ]
    if version and version < (4,) and choice.quorum_kind is QuorumKind.ANY and choice.quorum:
        lines.append(
            f"# Patroni {cluster.patroni} has no quorum mode (it came with 4.0): priority standbys instead, slower"
        )
        lines.append("# than priced when one standby is slow.")
    if version and version < (3,):
        lines.append(f"# Patroni {cluster.patroni} has no failsafe_mode (it came with 3.0).")
    lines += [f"{name}: {written(value)}  # {_WHY[name]}" for name, value in patroni_settings(choice, cluster).items()]
    lines += ["postgresql:", "  parameters:"]
    lines += [f"    {s.name}: '{s.value}'  # {s.why}" for s in postgres_settings(choice)]
    lines.append("# synchronous_standby_names is written by Patroni: never set it here.")
    return Recipe("patroni", "walproof-patroni.yaml", "\n".join(lines) + "\n")
