-- What the member is just now: role, version, identity, timeline, replay, damage.
SELECT current_setting('server_version_num')::int AS version,
       NOT pg_is_in_recovery() AS leader,
       current_setting('cluster_name') AS cluster_name,
       (SELECT system_identifier::text FROM pg_control_system()) AS system_identifier,
       CASE WHEN pg_is_in_recovery()
            THEN (SELECT received_tli FROM pg_stat_wal_receiver)
            ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int END AS timeline,
       CASE WHEN pg_is_in_recovery() THEN pg_is_wal_replay_paused() ELSE false END AS replay_paused,
       (SELECT count(*) FROM pg_stat_wal_receiver) AS receivers,
       (SELECT coalesce(status, 'unseen') FROM pg_stat_wal_receiver) AS receiver_status,
       (SELECT slot_name FROM pg_stat_wal_receiver) AS receiver_slot,
       (SELECT conninfo FROM pg_stat_wal_receiver) AS receiver_conninfo,
       (SELECT coalesce(extract(epoch FROM max(clock_timestamp() - xact_start)), 0)::float8
          FROM pg_stat_activity
         WHERE pid <> pg_backend_pid() AND backend_type = 'client backend' AND state <> 'idle'
           AND application_name NOT LIKE 'walproof%') AS oldest_query_s,
       (SELECT coalesce(extract(epoch FROM max(clock_timestamp() - prepared)), 0)::float8
          FROM pg_prepared_xacts) AS oldest_prepared_s,
       (SELECT coalesce(sum(checksum_failures), 0)::int8 FROM pg_stat_database) AS checksum_failures,
       current_setting('archive_mode') <> 'off'
         AND coalesce((SELECT last_failed_time > coalesce(last_archived_time, '-infinity')
                         FROM pg_stat_archiver), false) AS archive_failing,
       (SELECT count(*) FROM pg_class WHERE relpersistence = 'u' AND relkind = 'r') AS unlogged_tables,
       (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) AS superuser,
       pg_has_role(current_user, 'pg_monitor', 'USAGE') AS monitor,
       current_user::text AS "user"
