-- The ledger's own table. No unique key: a duplicate row must be able to exist in order to be seen.
CREATE SCHEMA IF NOT EXISTS walproof;

CREATE TABLE walproof.walproof_ledger (
    drill   integer NOT NULL,
    writer  integer NOT NULL,
    number  bigint  NOT NULL,
    stated  bigint  NOT NULL,  -- CRC-32 of the payload, computed by the client
    payload bytea   NOT NULL
);

CREATE INDEX walproof_ledger_attempt ON walproof.walproof_ledger (drill, writer, number);

COMMENT ON TABLE walproof.walproof_ledger IS 'written by walproof; safe to drop';
