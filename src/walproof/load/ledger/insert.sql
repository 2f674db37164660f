-- One attempt in a session that serves one writer only; the level is set in the session, and what it is comes back.
INSERT INTO walproof.walproof_ledger (drill, writer, number, stated, payload)
VALUES ({drill}, {writer}, $1::bigint, $2::bigint, $3::bytea)
RETURNING pg_current_wal_insert_lsn(), current_setting('synchronous_standby_names'), current_setting('synchronous_commit')
