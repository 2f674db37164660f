-- One member's counters, PostgreSQL 18: WAL flushes are in pg_stat_io. Times in ms, 0 when not tracked.
SELECT (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() ELSE pg_current_wal_lsn() END - '0/0')::bigint,
       (SELECT sum(fsyncs)::bigint FROM pg_stat_io WHERE object = 'wal' AND context = 'normal'),
       (SELECT sum(fsync_time)::float8 FROM pg_stat_io WHERE object = 'wal' AND context = 'normal'),
       (SELECT num_done FROM pg_stat_checkpointer),
       current_setting('synchronous_standby_names'),
       (SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'),
       (SELECT wal_fpi FROM pg_stat_wal)
