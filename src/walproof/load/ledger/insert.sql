-- One attempt over a session of the writer's own; the level stands in the session.
INSERT INTO walproof.walproof_ledger (drill, writer, number, stated, payload)
VALUES ({drill}, {writer}, $1::bigint, $2::bigint, $3::bytea)
RETURNING pg_current_wal_insert_lsn(), current_setting('synchronous_standby_names')
