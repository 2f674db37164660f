-- One attempt through a transaction pool: level, server and timeline travel with the row, because the next
-- transaction may run on another session. set_config(…, true) holds until the end of this very transaction.
INSERT INTO walproof.walproof_ledger (drill, writer, number, stated, payload)
VALUES ({drill}, {writer}, $1::bigint, $2::bigint, $3::bytea)
RETURNING pg_current_wal_insert_lsn(), current_setting('synchronous_standby_names'),
          set_config('synchronous_commit', '{level}', true),
          concat_ws(' ', host(inet_server_addr()), pg_stat_get_bgwriter_stat_reset_time()),
          left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)
