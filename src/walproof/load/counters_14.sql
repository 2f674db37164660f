-- One member's counters, PostgreSQL 14 to 16: checkpoints started are in pg_stat_bgwriter.
SELECT (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() ELSE pg_current_wal_lsn() END - '0/0')::bigint,
       (SELECT wal_sync FROM pg_stat_wal),
       (SELECT wal_sync_time FROM pg_stat_wal),
       (SELECT checkpoints_timed + checkpoints_req FROM pg_stat_bgwriter),
       current_setting('synchronous_standby_names'),
       (SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'),
       (SELECT wal_fpi FROM pg_stat_wal)
