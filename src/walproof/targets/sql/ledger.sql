-- The ledger's rows, and whose table and database they are in.

-- name: rows
-- The rows of one drill, with the checksum of the payload computed by this very member (PostgreSQL 18).
COPY (SELECT writer, number, stated, crc32(payload)
        FROM walproof.walproof_ledger
       WHERE drill = {drill}) TO STDOUT (FORMAT binary)

-- name: rows_17
-- The rows of one drill with their payloads: before PostgreSQL 18 the reader computes the checksum.
COPY (SELECT writer, number, stated, payload
        FROM walproof.walproof_ledger
       WHERE drill = {drill}) TO STDOUT (FORMAT binary)

-- name: table_mark
-- Whether a table of the ledger's name exists, and its comment: ours says so.
SELECT c.oid::regclass::text, obj_description(c.oid, 'pg_class')
  FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = 'walproof' AND c.relname = 'walproof_ledger'

-- name: with_amcheck
-- Puts amcheck's schema on the search_path; no row where there is no amcheck.
SELECT set_config('search_path', 'pg_catalog, ' || quote_ident(n.nspname), false)
  FROM pg_extension e
  JOIN pg_namespace n ON n.oid = e.extnamespace
 WHERE e.extname = 'amcheck'

-- name: check
-- amcheck of the ledger's heap; one line per finding. The index is checked before, by bt_index_check.
SELECT pg_catalog.concat('heap: block ', blkno, ', row ', offnum, ': ', msg)
  FROM verify_heapam('walproof.walproof_ledger'::regclass)
 LIMIT 5

-- name: database_mark
-- The comment on a database: how walproof knows its own.
SELECT datname::text AS name, shobj_description(oid, 'pg_database') AS comment,
       pg_get_userbyid(datdba) AS owner, pg_has_role(current_user, datdba, 'USAGE') AS ours
FROM pg_catalog.pg_database
WHERE datname = %(name)s
