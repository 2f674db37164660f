-- Who streams from here; lag in bytes is against this member's own position.
SELECT application_name, coalesce(client_addr::text, '') AS address, coalesce(state, 'streaming') AS state,
       coalesce(sync_state, 'async') AS sync_state,
       extract(epoch FROM flush_lag)::float8 AS flush_lag_s,
       extract(epoch FROM replay_lag)::float8 AS replay_lag_s,
       pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() ELSE pg_current_wal_lsn() END,
                       flush_lsn)::int8 AS lag_bytes,
       coalesce((SELECT slot_name::text FROM pg_replication_slots s WHERE s.active_pid = r.pid LIMIT 1), '') AS slot
FROM pg_stat_replication r
ORDER BY application_name
