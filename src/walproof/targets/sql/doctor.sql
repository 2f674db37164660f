-- What the doctor asks a member.

-- name: self
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

-- name: settings
-- Settings the checks read, with their unit and where each was set (file names need pg_read_all_settings).
SELECT name, setting AS value, coalesce(unit, '') AS unit, source, coalesce(sourcefile, '') AS file,
       sourceline AS line, pending_restart
FROM pg_catalog.pg_show_all_settings()

-- name: own_settings
-- Of the settings that a session may change and the checks read: those this role, database or DSN changes, and the default.
SELECT name, boot_val AS value, 'default' AS source
FROM pg_catalog.pg_show_all_settings()
WHERE source IN ('global', 'database', 'user', 'database user', 'client')
  AND (name IN ('synchronous_commit', 'commit_delay', 'wal_sender_timeout', 'client_connection_check_interval',
                'zero_damaged_pages', 'ignore_checksum_failure') OR name LIKE 'tcp\_%')

-- name: file_settings
-- What the configuration files set, for those who may call pg_show_all_file_settings().
SELECT name, setting AS value, 'configuration file' AS source, sourcefile AS file, sourceline AS line
FROM pg_catalog.pg_file_settings
WHERE applied

-- name: databases
-- Databases this role may connect to, the current one first, and those it may not.
SELECT datname::text AS name, has_database_privilege(datname, 'CONNECT') AS may
FROM pg_catalog.pg_database
WHERE datallowconn AND NOT datistemplate
ORDER BY datname <> current_database(), datname

-- name: overrides
-- Roles (ALL: every one) and databases with a synchronous_commit of their own, and the statement that takes each back.
-- The levels' other spellings (guc_tables.c) are kept there as they were written.
SELECT CASE WHEN s.setrole = 0 AND s.setdatabase <> 0 THEN 'database' ELSE 'role' END AS what,
       coalesce(r.rolname, d.datname, 'ALL')::text AS name,
       CASE WHEN s.setrole <> 0 THEN coalesce(d.datname::text, '') ELSE '' END AS database,
       CASE WHEN v IN ('false', 'no', '0') THEN 'off' WHEN v IN ('true', 'yes', '1') THEN 'on' ELSE v END AS value,
       CASE WHEN s.setrole = 0 AND s.setdatabase = 0 THEN 'ALTER ROLE ALL RESET synchronous_commit;'
            WHEN s.setrole = 0 THEN format('ALTER DATABASE %I RESET synchronous_commit;', d.datname)
            WHEN s.setdatabase = 0 THEN format('ALTER ROLE %I RESET synchronous_commit;', r.rolname)
            ELSE format('ALTER ROLE %I IN DATABASE %I RESET synchronous_commit;', r.rolname, d.datname) END AS reset
FROM pg_catalog.pg_db_role_setting s
CROSS JOIN LATERAL unnest(s.setconfig) AS c(entry)
CROSS JOIN LATERAL lower(split_part(c.entry, '=', 2)) AS v
LEFT JOIN pg_catalog.pg_roles r ON r.oid = s.setrole
LEFT JOIN pg_catalog.pg_database d ON d.oid = s.setdatabase
WHERE c.entry LIKE 'synchronous\_commit=%'
ORDER BY 1, 2, 3

-- name: functions
-- Functions and procedures of this database which have a SET clause for synchronous_commit, in effect while they run.
SELECT 'function' AS what, p.oid::regprocedure::text AS name, current_database()::text AS database,
       CASE WHEN v IN ('false', 'no', '0') THEN 'off' WHEN v IN ('true', 'yes', '1') THEN 'on' ELSE v END AS value,
       format('ALTER ROUTINE %s RESET synchronous_commit;', p.oid::regprocedure) AS reset
FROM pg_catalog.pg_proc p
CROSS JOIN LATERAL unnest(p.proconfig) AS c(entry)
CROSS JOIN LATERAL lower(split_part(c.entry, '=', 2)) AS v
WHERE c.entry LIKE 'synchronous\_commit=%'
ORDER BY 2

-- name: sources
-- Functions and procedures of this database whose source holds the word synchronous_commit, and their languages.
SELECT p.oid::regprocedure::text AS name, current_database()::text AS database, l.lanname::text AS language,
       coalesce(pg_catalog.pg_get_function_sqlbody(p.oid), p.prosrc) AS source
FROM pg_catalog.pg_proc p
JOIN pg_catalog.pg_language l ON l.oid = p.prolang
WHERE l.lanname NOT IN ('internal', 'c')
  AND coalesce(pg_catalog.pg_get_function_sqlbody(p.oid), p.prosrc) ILIKE '%synchronous\_commit%'
ORDER BY 1

-- name: senders
-- Standbys that stream from here (see observe.sql for who is none); lag in bytes is against this member's own position.
SELECT application_name, coalesce(client_addr::text, '') AS address, coalesce(state, 'streaming') AS state,
       coalesce(sync_state, 'async') AS sync_state,
       extract(epoch FROM flush_lag)::float8 AS flush_lag_s,
       pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() ELSE pg_current_wal_lsn() END,
                       flush_lsn)::int8 AS lag_bytes,
       coalesce((SELECT slot_name::text FROM pg_replication_slots s WHERE s.active_pid = r.pid LIMIT 1), '') AS slot
FROM pg_stat_replication r
WHERE state IS NULL OR (state <> 'streaming' OR replay_lsn IS NOT NULL)
  AND NOT EXISTS (SELECT FROM pg_replication_slots WHERE active_pid = r.pid AND slot_type = 'logical')
ORDER BY application_name

-- name: slots
-- Replication slots and the WAL each keeps.
SELECT slot_name::text AS name, active, coalesce(wal_status, 'reserved') AS wal_status,
       coalesce(pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn()
                                     ELSE pg_current_wal_lsn() END, restart_lsn), 0)::int8 AS retained_bytes,
       slot_type = 'logical' AS logical, temporary
FROM pg_replication_slots

-- name: waiters
-- Backends which wait for a synchronous standby just now; wait events of others need pg_monitor.
SELECT pid, coalesce(usename::text, '') AS "user",
       greatest(extract(epoch FROM clock_timestamp() - query_start), 0)::float8 AS seconds
FROM pg_stat_activity
WHERE wait_event_type = 'IPC' AND wait_event = 'SyncRep' AND backend_type = 'client backend'
ORDER BY seconds DESC
