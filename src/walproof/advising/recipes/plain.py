"""A choice for PostgreSQL without a manager: ALTER SYSTEM statements and the same as postgresql.conf."""

from walproof.advising.recipes.settings import Recipe, Set, postgres_settings, standby_names
from walproof.model.advice import Choice, ClusterProfile


def settings(choice: Choice, cluster: ClusterProfile) -> tuple[Set, ...]:
    """Every parameter, standby names among them."""
    names = standby_names(choice, cluster)
    why = "who must have a commit before it is acknowledged" if names else "no standby is waited for"
    return (*postgres_settings(choice), Set("synchronous_standby_names", names, why))


def quoted(value: str) -> str:
    """As a string literal of SQL and of postgresql.conf."""
    return "'" + value.replace("'", "''") + "'"


def _notes(choice: Choice, cluster: ClusterProfile, mark: str) -> list[str]:
    notes = [
        f"{mark} walproof: {choice.text}; PostgreSQL {cluster.postgres}",
        f"{mark} run on every member, standbys too:",
    ]
    notes.append(f"{mark} after a promotion the guarantee must be the same.")
    if choice.quorum and choice.quorum < cluster.standbys:
        notes.append(f"{mark} ANY: promote the standby with the highest pg_last_wal_receive_lsn(), never another one.")
    if cluster.postgres < 17:
        notes.append(f"{mark} PostgreSQL {cluster.postgres} lacks sync_replication_slots: logical slots stay behind.")
    if cluster.postgres >= 18:
        notes.append(f"{mark} PostgreSQL 18 may drop idle slots itself: see idle_replication_slot_timeout.")
    return notes


def alter_system(choice: Choice, cluster: ClusterProfile) -> Recipe:
    """Statements to paste into psql as superuser."""
    lines = _notes(choice, cluster, "--")
    lines += [f"ALTER SYSTEM SET {s.name} = {quoted(s.value)};  -- {s.why}" for s in settings(choice, cluster)]
    lines += [
        "SELECT pg_reload_conf();",
        "-- in effect? SHOW synchronous_standby_names; SELECT * FROM pg_stat_replication;",
    ]
    return Recipe("plain", "walproof.sql", "\n".join(lines) + "\n")


def postgresql_conf(choice: Choice, cluster: ClusterProfile) -> Recipe:
    """The same for postgresql.conf or a file in its conf.d."""
    lines = _notes(choice, cluster, "#")
    lines += [f"{s.name} = {quoted(s.value)}  # {s.why}" for s in settings(choice, cluster)]
    return Recipe("postgresql.conf", "walproof.conf", "\n".join(lines) + "\n")
