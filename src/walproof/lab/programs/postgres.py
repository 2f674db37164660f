"""PostgreSQL's parameters in the lab: what Patroni hands to every member. Pure; starts nothing."""


def parameters(members: int, *, fast_timeouts: bool) -> dict[str, str]:
    """Parameters of a lab of that size; `--param` goes over them."""
    known = {
        "max_connections": "400",
        "superuser_reserved_connections": "5",
        "max_worker_processes": "8",
        "max_wal_senders": str(10 + 2 * members),
        "max_replication_slots": str(10 + 2 * members),
        "max_prepared_transactions": "0",
        "wal_level": "replica",
        "wal_log_hints": "on",
        "wal_keep_size": "1GB",
        "max_wal_size": "4GB",
        "shared_buffers": "256MB",
        # Segments below /dev/shm would outlive a member killed with -9; these end with its IPC namespace.
        "dynamic_shared_memory_type": "sysv",
        "hot_standby_feedback": "off",
        "track_io_timing": "on",
        "track_wal_io_timing": "on",
        "log_checkpoints": "on",
        "log_line_prefix": "%m [%p] %q%u@%d %a ",
        "logging_collector": "off",
        "password_encryption": "scram-sha-256",
    }
    if not fast_timeouts:
        return known
    fast = {
        # A lost peer is noticed in seconds, not after TCP's minutes of retransmission (pitfalls P15, P17).
        "wal_sender_timeout": "5s",
        "wal_receiver_timeout": "2s",
        "wal_retrieve_retry_interval": "500ms",
        "wal_receiver_status_interval": "1s",
        "tcp_keepalives_idle": "5",
        "tcp_keepalives_interval": "1",
        "tcp_keepalives_count": "3",
        "tcp_user_timeout": "5000",
    }
    return {**known, **fast}
