-- A member's own view of its walreceiver. Needs pg_monitor. A walreceiver that is still connecting is not in
-- pg_stat_wal_receiver yet, but its process is in pg_stat_activity.
SELECT pg_is_in_recovery() AS in_recovery,
       EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'walreceiver') AS running,
       coalesce(current_setting('primary_conninfo', true), '') <> '' AS connects,
       coalesce(pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() END, '0/0'), 0)::bigint
           AS received,
       (SELECT extract(epoch FROM clock_timestamp() - last_msg_receipt_time)::float8 FROM pg_stat_wal_receiver)
           AS silent_s
