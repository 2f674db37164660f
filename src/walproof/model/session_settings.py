"""Settings of walproof's own sessions, which no database's owner and no role's settings may replace."""

SESSION = {
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_session_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "default_transaction_read_only": "off",
    "default_transaction_isolation": r"read\ committed",
    "default_transaction_deferrable": "off",
    "default_tablespace": "",
    "exit_on_error": "off",
    "client_min_messages": "notice",
    "local_preload_libraries": "",
    "transform_null_equals": "off",
    "array_nulls": "on",
    "quote_all_identifiers": "off",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "jit": "off",
    "max_parallel_workers_per_gather": "0",
}
"""What a database's owner could set (ALTER DATABASE) to end, slow or change our own sessions: each has a value.

PostgreSQL 14 to 18 know them all; transaction_timeout, which 17 added, is `load/open_session.py`'s. What decides for
commits (synchronous_commit) is left to those who measure it."""

AS_PSYCOPG_READS = "-c standard_conforming_strings=on -c datestyle=ISO -c client_encoding=UTF8"
"""Options that no DSN overrides either."""


def session_options() -> str:
    """SESSION as libpq's options."""
    return " ".join(f"-c {name}={value}" for name, value in SESSION.items())
