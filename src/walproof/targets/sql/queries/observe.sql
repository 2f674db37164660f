-- One observation of one member, as cheap as it can be: PostgreSQL 14 to 18, no superuser needed (pg_monitor sees more).
SELECT
    pg_is_in_recovery() AS standby,
    CASE WHEN pg_is_in_recovery() THEN coalesce(pg_last_wal_replay_lsn(), '0/0') ELSE pg_current_wal_lsn() END
        - '0/0'::pg_lsn AS lsn,
    CASE WHEN pg_is_in_recovery()
        THEN (SELECT received_tli FROM pg_stat_wal_receiver)
        ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int
    END AS timeline,
    current_setting('synchronous_standby_names') AS names,
    (SELECT coalesce(sum(xact_commit), 0) FROM pg_stat_database) AS commits,
    (SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep') AS waiting,
    (SELECT coalesce(max(extract(epoch FROM clock_timestamp() - state_change)), 0)
       FROM pg_stat_activity WHERE wait_event = 'SyncRep') AS longest_wait_s,
    (SELECT coalesce(json_agg(json_build_object(
        'name', application_name, 'state', state, 'sync_state', sync_state, 'address', host(client_addr),
        'replayed', replay_lsn - '0/0'::pg_lsn)), '[]')
       FROM pg_stat_replication) AS standbys
