-- The ledger's table, and what its writers and readers send.

-- name: create
-- The ledger's own table. No unique key: a duplicate row must be able to exist in order to be seen.
CREATE TABLE walproof.walproof_ledger (
    drill   integer NOT NULL,
    writer  integer NOT NULL,
    number  bigint  NOT NULL,
    stated  bigint  NOT NULL,  -- CRC-32 of the payload, computed by the client
    payload bytea   NOT NULL
);

CREATE INDEX walproof_ledger_attempt ON walproof.walproof_ledger (drill, writer, number);

COMMENT ON TABLE walproof.walproof_ledger IS 'written by walproof; safe to drop';

-- name: facts
-- Asked once per connection: the server, since when it has not crashed (recovery resets statistics), its timeline.
SELECT pg_catalog.concat_ws(' ', pg_catalog.host(pg_catalog.inet_server_addr()), pg_catalog.pg_stat_get_bgwriter_stat_reset_time()),
       CASE WHEN pg_catalog.pg_is_in_recovery() THEN ''
            ELSE pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 8) END

-- name: insert
-- One attempt in a session that serves one writer only; the level is set in the session, and what it is comes back.
INSERT INTO walproof.walproof_ledger (drill, writer, number, stated, payload)
VALUES ({drill}, {writer}, $1::bigint, $2::bigint, $3::bytea)
RETURNING pg_current_wal_insert_lsn(), current_setting('synchronous_standby_names'), current_setting('synchronous_commit')

-- name: insert_pooled
-- One attempt through a transaction pool: level, server and timeline travel with the row, because the next
-- transaction may run on another session, with another's search_path. set_config(…, true) holds until this one's end.
INSERT INTO walproof.walproof_ledger (drill, writer, number, stated, payload)
VALUES ({drill}, {writer}, $1::bigint, $2::bigint, $3::pg_catalog.bytea)
RETURNING pg_catalog.pg_current_wal_insert_lsn(), pg_catalog.current_setting('synchronous_standby_names'),
          pg_catalog.set_config('synchronous_commit', '{level}', true),
          pg_catalog.concat_ws(' ', pg_catalog.host(pg_catalog.inet_server_addr()), pg_catalog.pg_stat_get_bgwriter_stat_reset_time()),
          pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 8)

-- name: reader
-- One read: whether this member leads, and the newest visible number of every writer (-1: none yet).
SELECT NOT pg_is_in_recovery(),
       ARRAY(SELECT coalesce((SELECT l.number
                                FROM walproof.walproof_ledger l
                               WHERE l.drill = %(drill)s AND l.writer = w
                               ORDER BY l.number DESC
                               LIMIT 1), -1)
               FROM generate_series(0, %(writers)s - 1) AS w
              ORDER BY w)
