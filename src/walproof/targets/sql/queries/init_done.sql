-- The files of --init that were run in this database, by the SHA-256 of their text.
CREATE SCHEMA IF NOT EXISTS walproof;

CREATE TABLE IF NOT EXISTS walproof.init_done (
    sha256 text PRIMARY KEY,
    at     timestamptz NOT NULL DEFAULT now()
);
