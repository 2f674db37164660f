-- What the sampler reads on members; counters by the version of PostgreSQL.

-- name: counters_14
-- One member's counters, PostgreSQL 14 to 16: checkpoints started are in pg_stat_bgwriter.
SELECT (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() ELSE pg_current_wal_lsn() END - '0/0')::bigint,
       (SELECT wal_sync FROM pg_stat_wal),
       (SELECT wal_sync_time FROM pg_stat_wal),
       (SELECT checkpoints_timed + checkpoints_req FROM pg_stat_bgwriter),
       current_setting('synchronous_standby_names'),
       (SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'),
       (SELECT wal_fpi FROM pg_stat_wal),
       (SELECT wal_bytes FROM pg_stat_wal)::bigint,
       pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
       (SELECT sum(xact_commit) FROM pg_stat_database)::bigint,
       (SELECT sum(xact_rollback) FROM pg_stat_database)::bigint

-- name: counters_17
-- One member's counters, PostgreSQL 17: flushes in pg_stat_wal, checkpoints started in pg_stat_checkpointer.
SELECT (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() ELSE pg_current_wal_lsn() END - '0/0')::bigint,
       (SELECT wal_sync FROM pg_stat_wal),
       (SELECT wal_sync_time FROM pg_stat_wal),
       (SELECT num_timed + num_requested FROM pg_stat_checkpointer),
       current_setting('synchronous_standby_names'),
       (SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'),
       (SELECT wal_fpi FROM pg_stat_wal),
       (SELECT wal_bytes FROM pg_stat_wal)::bigint,
       pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
       (SELECT sum(xact_commit) FROM pg_stat_database)::bigint,
       (SELECT sum(xact_rollback) FROM pg_stat_database)::bigint

-- name: counters_18
-- One member's counters, PostgreSQL 18: WAL flushes are in pg_stat_io. Times in ms, 0 when not tracked.
SELECT (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() ELSE pg_current_wal_lsn() END - '0/0')::bigint,
       (SELECT sum(fsyncs)::bigint FROM pg_stat_io WHERE object = 'wal' AND context = 'normal'),
       (SELECT sum(fsync_time)::float8 FROM pg_stat_io WHERE object = 'wal' AND context = 'normal'),
       (SELECT num_done FROM pg_stat_checkpointer),
       current_setting('synchronous_standby_names'),
       (SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'),
       (SELECT wal_fpi FROM pg_stat_wal),
       (SELECT wal_bytes FROM pg_stat_wal)::bigint,
       pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
       (SELECT sum(xact_commit) FROM pg_stat_database)::bigint,
       (SELECT sum(xact_rollback) FROM pg_stat_database)::bigint

-- name: waits
-- What the load's sessions wait for just now (no wait event means that they compute), and whether a checkpoint or an
-- autovacuum worker runs. A checkpointer with nothing to do waits in CheckpointerMain, in every version. How many of them
-- have a transaction id, and so wrote; whether the WAL writer flushes (WALSync until 16, WalSync from 17 on).
SELECT CASE backend_type
       WHEN 'client backend' THEN coalesce(wait_event_type || ':' || wait_event, 'cpu')
       ELSE backend_type
       END, count(*), count(backend_xid)
  FROM pg_stat_activity
 WHERE (backend_type = 'client backend' AND application_name = 'walproof-load')
    OR backend_type = 'autovacuum worker'
    OR (backend_type = 'checkpointer' AND wait_event IS DISTINCT FROM 'CheckpointerMain')
    OR (backend_type = 'walwriter' AND lower(wait_event) IN ('walsync', 'walwrite'))
 GROUP BY 1

-- name: lags
-- Replication lag by stage, in ms, as the standbys last reported; NULL when nothing was sent lately.
SELECT application_name,
       (extract(epoch FROM write_lag) * 1000)::float8,
       (extract(epoch FROM flush_lag) * 1000)::float8,
       (extract(epoch FROM replay_lag) * 1000)::float8
  FROM pg_stat_replication

-- name: flush
-- Flushes all WAL up to here, then says where that is, in bytes: a commit that wrote WAL waits for it.
SELECT (pg_logical_emit_message(true, 'walproof', '') - '0/0')::bigint
