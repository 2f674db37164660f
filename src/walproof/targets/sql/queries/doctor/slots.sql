-- Replication slots and the WAL each keeps.
SELECT slot_name::text AS name, active, coalesce(wal_status, 'reserved') AS wal_status,
       coalesce(pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn()
                                     ELSE pg_current_wal_lsn() END, restart_lsn), 0)::int8 AS retained_bytes,
       slot_type = 'logical' AS logical, temporary
FROM pg_replication_slots
