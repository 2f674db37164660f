"""The settings that a record keeps of a target, as pg_settings shows them."""

import psycopg

SHOWN = (
    "synchronous_standby_names",
    "synchronous_commit",
    "fsync",
    "full_page_writes",
    "wal_sync_method",
    "commit_delay",
    "commit_siblings",
    "shared_buffers",
    "max_wal_size",
    "checkpoint_timeout",
    "wal_sender_timeout",
    "max_connections",
    "data_checksums",
)
_QUERY = "SELECT name, setting || coalesce(unit, '') FROM pg_settings WHERE name = ANY(%s) ORDER BY name"


def settings_of(connection: psycopg.Connection) -> dict[str, str]:
    """Name → value with its unit, of the settings that matter to a commit."""
    return {str(name): str(value) for name, value in connection.execute(_QUERY, (list(SHOWN),)).fetchall()}
