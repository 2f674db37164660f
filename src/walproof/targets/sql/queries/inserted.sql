-- What the insert and batch workloads write to.
CREATE SCHEMA IF NOT EXISTS walproof;

CREATE TABLE walproof.inserted (
    id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    client integer NOT NULL,
    value  bigint  NOT NULL,
    filler text    NOT NULL
);

COMMENT ON TABLE walproof.inserted IS 'written by walproof; safe to drop';
