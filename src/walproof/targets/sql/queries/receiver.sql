-- A member's own view of its walreceiver and of how far it has WAL. Needs pg_monitor: without pg_read_all_stats
-- backend_type is NULL and every walreceiver seems gone, so `lacks` names the GRANT and the rest is not believed.
-- A walreceiver that is still connecting is not in pg_stat_wal_receiver yet, but its process is in pg_stat_activity.
-- Position: after a crash pg_last_wal_receive_lsn() is the start of a segment, however much is there; Patroni compares
-- the larger of both too. `server` tells one server from another that was asked under a wrong name. `waits`: the startup process has replayed all that is here and found no other source.
WITH rights AS (
  SELECT pg_has_role(current_user, 'pg_read_all_settings', 'USAGE')
         AND pg_has_role(current_user, 'pg_read_all_stats', 'USAGE') AS enough
)
SELECT pg_is_in_recovery() AS in_recovery,
       CASE WHEN enough THEN '' ELSE format('GRANT pg_monitor TO %I', current_user) END AS lacks,
       EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'walreceiver') AS running,
       coalesce((SELECT wait_event = 'RecoveryRetrieveRetryInterval' FROM pg_stat_activity
                  WHERE backend_type = 'startup'), false) AS waits,
       CASE WHEN enough THEN coalesce(current_setting('primary_conninfo', true), '') <> '' ELSE false END AS connects,
       CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() END IS NOT NULL AS streamed,
       CASE WHEN pg_is_in_recovery()
            THEN coalesce(pg_wal_lsn_diff(greatest(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn()), '0/0'), 0)
            ELSE 0 END::bigint AS position,
       extract(epoch FROM pg_postmaster_start_time())::float8 AS server,
       (SELECT extract(epoch FROM clock_timestamp() - last_msg_receipt_time)::float8 FROM pg_stat_wal_receiver)
           AS silent_s
  FROM rights
