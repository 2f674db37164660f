-- A member's own view of its walreceiver and of how far it has WAL. Needs pg_monitor: without pg_read_all_stats
-- backend_type is NULL and every walreceiver seems gone, so `lacks` names the GRANT and the rest is not believed.
-- A walreceiver that is still connecting is not in pg_stat_wal_receiver yet, but its process is in pg_stat_activity; one
-- that waits for another timeline is in both.
-- Position: after a crash pg_last_wal_receive_lsn() is the start of a segment, however much is there; Patroni compares
-- the larger of both too. `waits`: the startup process has replayed all that is here and found no other source.
-- `named`: as which member it follows, by the application_name that Patroni writes. `hinders`: why it may not come to
-- wait soon; where a restore_command takes half of wal_retrieve_retry_interval, it never does. `asks_after_s`: half of
-- wal_receiver_timeout, when the walreceiver asks for an answer.
WITH rights AS (
  SELECT pg_has_role(current_user, 'pg_read_all_settings', 'USAGE')
         AND pg_has_role(current_user, 'pg_read_all_stats', 'USAGE') AS enough
), conninfo AS (
  SELECT CASE WHEN enough THEN coalesce(current_setting('primary_conninfo', true), '') ELSE '' END AS words FROM rights
), wal AS (
  SELECT in_recovery,
         CASE WHEN in_recovery THEN pg_last_wal_receive_lsn() END AS received,
         CASE WHEN in_recovery THEN pg_last_wal_replay_lsn() END AS replayed,
         CASE WHEN in_recovery THEN pg_is_wal_replay_paused() END AS paused
    FROM (SELECT pg_is_in_recovery() AS in_recovery) AS now
)
SELECT in_recovery,
       CASE WHEN enough THEN '' ELSE format('GRANT pg_monitor TO %I', current_user) END AS lacks,
       EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'walreceiver') AS running,
       coalesce((SELECT wait_event = 'RecoveryRetrieveRetryInterval' FROM pg_stat_activity
                  WHERE backend_type = 'startup'), false) AS waits,
       words <> '' AS connects,
       coalesce(substring(words FROM '(?:^|\s)application_name=(\S+)'), '') AS named,
       received IS NOT NULL AS streamed,
       coalesce(pg_wal_lsn_diff(greatest(received, replayed), '0/0'), 0)::bigint AS position,
       CASE WHEN current_setting('server_version_num')::int NOT BETWEEN 140000 AND 189999
              THEN 'PostgreSQL ' || current_setting('server_version') || ', where 14 to 18 were read'
            WHEN paused THEN 'its replay is paused'
            WHEN current_setting('recovery_min_apply_delay') <> '0' THEN 'recovery_min_apply_delay is set'
            WHEN enough AND current_setting('restore_command') <> '' THEN 'restore_command is set'
            WHEN pg_wal_lsn_diff(received, replayed) > 16777216 THEN 'it has more than 16 MB of WAL to replay'
            WHEN EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'startup'
                            AND (wait_event LIKE 'RecoveryConflict%' OR wait_event_type IN ('BufferPin', 'Lock')))
              THEN 'its replay waits for a query'
            ELSE '' END AS hinders,
       coalesce(nullif(extract(epoch FROM current_setting('wal_receiver_timeout')::interval) / 2, 0), 'infinity')::float8
           AS asks_after_s,
       (SELECT extract(epoch FROM clock_timestamp() - last_msg_receipt_time)::float8 FROM pg_stat_wal_receiver
         WHERE status = 'streaming') AS silent_s
  FROM rights, conninfo, wal
