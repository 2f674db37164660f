-- What is asked of the copy, and of the new primary. Tables, keys and rows of the catalogs alone: no function of theirs.

-- name: functions
CREATE SCHEMA {0}
CREATE FUNCTION {0}.get_raw_page(text, text, int8) RETURNS bytea AS '$libdir/pageinspect', 'get_raw_page_fork_1_9' LANGUAGE C STRICT
CREATE FUNCTION {0}.heap_page_items(IN page bytea, OUT lp smallint, OUT lp_off smallint, OUT lp_flags smallint, OUT lp_len smallint, OUT t_xmin xid, OUT t_xmax xid, OUT t_field3 int4, OUT t_ctid tid, OUT t_infomask2 integer, OUT t_infomask integer, OUT t_hoff smallint, OUT t_bits text, OUT t_oid oid, OUT t_data bytea) RETURNS SETOF record AS '$libdir/pageinspect', 'heap_page_items' LANGUAGE C STRICT
CREATE FUNCTION {0}.heap_force_freeze(regclass, tid[]) RETURNS void AS '$libdir/pg_surgery', 'heap_force_freeze' LANGUAGE C STRICT

-- name: databases
SELECT oid, encode(convert_to(datname::text, getdatabaseencoding()), 'hex') AS name FROM pg_database WHERE datallowconn AND datconnlimit <> -2

-- name: tables
SELECT c.oid, n.nspname, c.relname, pg_relation_filenode(c.oid), t.relname, pg_relation_filenode(t.oid),
  c.relpersistence = 'u', c.relam, CASE c.reltablespace WHEN 0 THEN d.dattablespace ELSE c.reltablespace END
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN pg_class t ON t.oid = c.reltoastrelid,
  pg_database d
WHERE c.relkind = 'r' AND c.oid >= 16384 AND c.relpersistence <> 't' AND d.datname = current_database()
ORDER BY c.oid

-- name: columns
SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnum, a.atttypid, b.typname, e.typname
FROM pg_attribute a JOIN pg_type b ON b.oid = a.atttypid LEFT JOIN pg_type e ON e.oid = b.typelem
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' ORDER BY a.attnum

-- name: key
SELECT indkey FROM pg_index WHERE indrelid = %s AND (indisprimary OR indisreplident) AND indisvalid AND indpred IS NULL
ORDER BY indisprimary DESC LIMIT 1

-- name: strange-types
-- Types whose output function is neither PostgreSQL's own nor in an installed library: 13 is the language C.
SELECT count(*) FROM pg_type t JOIN pg_proc p ON p.oid = t.typoutput
WHERE p.oid >= 10000 AND NOT (p.prolang = 13 AND p.probin ~ '^[$]libdir/[A-Za-z0-9_.-]+$')

-- name: references
SELECT conrelid, confrelid FROM pg_constraint WHERE contype = 'f' AND conrelid <> confrelid

-- name: sequences
SELECT n.nspname || '.' || c.relname, pg_relation_filenode(c.oid) FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'S' ORDER BY 1

-- name: versions
SELECT b, lp, t_xmin, t_xmax, t_infomask FROM unnest(%s::int8[]) b,
  {0}.heap_page_items({0}.get_raw_page(%s, 'main', b)) WHERE lp_flags = 1 AND t_xmin IS NOT NULL

-- name: blocks
SELECT pg_relation_size(%s::regclass) / current_setting('block_size')::int

-- name: updaters
-- The transaction of each multixact that updated or deleted; the others of it only locked.
SELECT m::text, x.xid::text FROM unnest(%s::text[]::xid[]) m, pg_get_multixact_members(m) x
WHERE x.mode IN ('nokeyupd', 'upd')

-- name: shape
SELECT pg_relation_filenode(c.oid), array_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod) ORDER BY a.attnum)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid
WHERE n.nspname = %s AND c.relname = %s AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' GROUP BY c.oid

-- name: identity
SELECT system_identifier, pg_is_in_recovery(), current_setting('server_version_num')::int / 10000,
       current_setting('is_superuser') = 'on' FROM pg_control_system()

-- name: prepared
SELECT transaction::text::bigint, gid, database FROM pg_prepared_xacts
