-- The tables of workloads, and checkpoints around them. Types are written down: the load's schemas have no better match.

-- name: inserted
-- What the insert and batch workloads write to.
CREATE TABLE walproof.inserted (
    id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    client integer NOT NULL,
    value  bigint  NOT NULL,
    filler text    NOT NULL
);

COMMENT ON TABLE walproof.inserted IS 'written by walproof; safe to drop';

-- name: init_done
-- The files of --init that were run in this database, by the SHA-256 of their text.
CREATE TABLE walproof.init_done (
    sha256 text PRIMARY KEY,
    at     timestamptz NOT NULL DEFAULT now()
);

COMMENT ON TABLE walproof.init_done IS 'written by walproof; safe to drop';

-- name: checkpointer_idle
-- Whether the checkpointer is known to have nothing to do: a checkpoint that runs made full-page images necessary.
SELECT coalesce(bool_and(wait_event = 'CheckpointerMain'), false)
  FROM pg_stat_activity
 WHERE backend_type = 'checkpointer'

-- name: touch_pages
-- Changes one row of every page of pgbench_accounts (61 fill one) and with it every page of its index, so that their
-- full-page images are in the WAL before measuring begins; nothing where the table is larger than 512 MB.
UPDATE pgbench_accounts
   SET abalance = abalance
 WHERE aid % 61 = 0 AND pg_table_size('pgbench_accounts'::regclass) < 512 * 1024 * 1024

-- name: checkpoint
-- Where the last finished checkpoint began, and the seconds between timed ones.
SELECT redo_lsn::text, extract(epoch FROM current_setting('checkpoint_timeout')::interval)::float8
  FROM pg_control_checkpoint()
