-- The state of a member, and where a setting of it comes from.

-- name: observe
-- One observation of one member, as cheap as it can be: PostgreSQL 14 to 18, no superuser needed. hidden_from is the
-- role from which PostgreSQL hides what others wait for and how standbys stream: no such row is a zero then. Who streams
-- and holds a logical slot is a subscriber, who tells no place that it replayed a receiver of WAL: neither is a standby.
SELECT
    pg_is_in_recovery() AS standby,
    CASE WHEN pg_is_in_recovery() THEN coalesce(pg_last_wal_replay_lsn(), '0/0') ELSE pg_current_wal_lsn() END
        - '0/0'::pg_lsn AS lsn,
    CASE WHEN pg_is_in_recovery()
        THEN (SELECT received_tli FROM pg_stat_wal_receiver)
        ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int
    END AS timeline,
    current_setting('synchronous_standby_names') AS names,
    current_setting('server_version_num')::int AS version,
    (SELECT system_identifier::text FROM pg_control_system()) AS system,
    current_setting('cluster_name') AS cluster_name,
    (SELECT conninfo FROM pg_stat_wal_receiver) AS receiver_conninfo,
    (SELECT coalesce(sum(xact_commit), 0) FROM pg_stat_database) AS commits,
    CASE WHEN NOT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE') THEN current_user END AS hidden_from,
    (SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep') AS waiting,
    (SELECT coalesce(max(extract(epoch FROM clock_timestamp() - state_change)), 0)
       FROM pg_stat_activity WHERE wait_event = 'SyncRep') AS longest_wait_s,
    (SELECT coalesce(json_agg(json_build_object(
        'name', application_name, 'state', state, 'sync_state', sync_state, 'address', host(client_addr),
        'replayed', replay_lsn - '0/0'::pg_lsn)), '[]')
       FROM pg_stat_replication r
      WHERE state IS NULL OR (state <> 'streaming' OR replay_lsn IS NOT NULL)
        AND NOT EXISTS (SELECT FROM pg_replication_slots WHERE active_pid = r.pid AND slot_type = 'logical')) AS standbys

-- name: member_state
-- What a member says of itself that proves a fault or voids a verdict: PostgreSQL 14 to 18, no superuser needed.
SELECT
    pg_is_in_recovery() AS in_recovery,
    pg_postmaster_start_time()::text AS started,
    (SELECT stats_reset::text FROM pg_stat_bgwriter) AS stats_reset,
    (SELECT system_identifier::text FROM pg_control_system()) AS system,
    CASE WHEN pg_is_in_recovery()
        THEN (SELECT received_tli FROM pg_stat_wal_receiver)
        ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int
    END AS timeline,
    CASE WHEN pg_is_in_recovery() THEN coalesce(pg_last_wal_replay_lsn(), '0/0') ELSE pg_current_wal_flush_lsn() END
        - '0/0'::pg_lsn AS lsn,
    (SELECT json_object_agg(name, setting)
       FROM pg_catalog.pg_show_all_settings()
      WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit', 'synchronous_standby_names', 'data_checksums',
                     'wal_level')) AS settings,
    ARRAY(SELECT coalesce(r.rolname, 'every role') || ' in ' || coalesce(d.datname, 'every database') || ': ' || setting
            FROM pg_db_role_setting s
            LEFT JOIN pg_roles r ON r.oid = s.setrole
            LEFT JOIN pg_database d ON d.oid = s.setdatabase,
                 unnest(s.setconfig) AS setting
           WHERE setting LIKE 'synchronous\_commit=%'
           UNION
          SELECT 'function ' || p.proname || ': ' || setting
            FROM pg_proc p, unnest(p.proconfig) AS setting
           WHERE setting LIKE 'synchronous\_commit=%') AS overrides,
    (SELECT sum(checksum_failures)::bigint FROM pg_stat_database) AS checksum_failures,
    ARRAY(SELECT application_name FROM pg_stat_replication WHERE state = 'streaming') AS senders,
    EXISTS (SELECT FROM pg_stat_wal_receiver WHERE status = 'streaming') AS receives,
    CASE WHEN pg_is_in_recovery() THEN pg_get_wal_replay_pause_state() = 'paused' END AS replay_paused,
    c.relpersistence::text AS persistence,
    ARRAY(SELECT tgname::text FROM pg_trigger WHERE tgrelid = c.oid AND NOT tgisinternal
           UNION ALL
          SELECT rulename::text FROM pg_rewrite WHERE ev_class = c.oid) AS triggers,
    c.relrowsecurity AS row_security
  FROM (SELECT to_regclass('walproof.walproof_ledger') AS oid) AS ledger
  LEFT JOIN pg_class c ON c.oid = ledger.oid

-- name: auto_conf
-- postgresql.auto.conf; a name set twice, in capitals too, counts where it stands last.
SELECT DISTINCT ON (lower(name)) lower(name) AS name, setting AS value
FROM pg_catalog.pg_file_settings
WHERE sourcefile = current_setting('data_directory') || '/postgresql.auto.conf' AND name IS NOT NULL
ORDER BY lower(name), seqno DESC

-- name: may_look
SELECT has_function_privilege('pg_catalog.pg_stat_file(text)', 'EXECUTE') AS may

-- name: made
-- What tells a server from its cluster's others, wherever it is.
SELECT current_setting('data_directory') || ', made at '
    || to_char((pg_catalog.pg_stat_file('PG_VERSION')).change AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') AS server

-- name: may_look_around
SELECT pg_has_role('pg_read_server_files', 'USAGE')
    AND has_function_privilege('pg_catalog.pg_stat_file(text,boolean)', 'EXECUTE') AS may

-- name: machine
-- A copy of a volume has its files' times, and another machine.
SELECT to_char((pg_catalog.pg_stat_file('/etc/machine-id', true)).change AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') AS server

-- name: started
SELECT pg_postmaster_start_time() AS started

-- name: in_effect
-- Whether the server has read its files since, and nothing keeps these names from being as postgresql.auto.conf says.
SELECT pg_conf_load_time() >= %(asked)s
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_show_all_settings()
                    WHERE name = ANY(%(names)s::text[]) AND (pending_restart OR source = 'command line'))
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_file_settings f
                    WHERE f.name = ANY(%(names)s::text[]) AND f.error IS NOT NULL) AS in_effect

-- name: room
-- What a limit binds, how many sessions of clients it lets in but for those reserved, and how many others are there now.
-- Of others' sessions a role without pg_read_all_stats sees database and user alone, which clients have.
WITH others AS (
    SELECT datid, usesysid FROM pg_stat_activity
     WHERE datid IS NOT NULL AND usesysid IS NOT NULL AND pid <> pg_backend_pid()
       AND coalesce(backend_type, 'client backend') = 'client backend'
)
SELECT 'the server', current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
       - coalesce(current_setting('reserved_connections', true), '0')::int, (SELECT count(*) FROM others)
UNION ALL
SELECT 'role ' || rolname, rolconnlimit, (SELECT count(*) FROM others WHERE usesysid = r.oid)
  FROM pg_roles r WHERE rolname = session_user AND rolconnlimit >= 0 AND NOT rolsuper
UNION ALL
SELECT 'database ' || datname, datconnlimit, (SELECT count(*) FROM others WHERE datid = d.oid)
  FROM pg_database d WHERE datname = current_database() AND datconnlimit >= 0
