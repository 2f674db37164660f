-- An instance's own view: whose commits wait for whom, when its WAL receiver last heard anything, when it asks itself,
-- whether a promotion would wait for its replay. Functions in place of views, which any role can have locked: LOCK TABLE
-- pg_settings, or ALTER MATERIALIZED VIEW of one, which waits for its lock before it asks who may
-- (ExecAlterObjectDependsStmt). A setting of a role's or a database's own is not the WAL receiver's (PostgreSQL 19).
SELECT in_recovery, current_setting('synchronous_standby_names') AS standby_names,
       CASE WHEN source IN ('default', 'configuration file', 'command line') THEN setting::float8 / 2000 ELSE 0 END
           AS pings_s,
       received_tli AS timeline, extract(epoch FROM clock_timestamp() - last_msg_receipt_time)::float8 AS silent_s,
       CASE WHEN in_recovery
            THEN pg_is_wal_replay_paused()
                 OR coalesce(pg_wal_lsn_diff(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn()) > 16777216, false)
                 OR EXISTS (SELECT FROM pg_stat_get_activity(NULL) WHERE backend_type = 'startup'
                               AND (wait_event LIKE 'RecoveryConflict%' OR wait_event_type IN ('BufferPin', 'Lock')))
            ELSE false END AS behind
  FROM (SELECT pg_is_in_recovery() AS in_recovery) AS now CROSS JOIN pg_show_all_settings()
       LEFT JOIN pg_stat_get_wal_receiver() ON status = 'streaming'
 WHERE name = 'wal_receiver_timeout'
