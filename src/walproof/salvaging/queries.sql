-- What is asked of the copy, and of the new primary. Tables, keys and rows of the catalogs alone: no function of theirs.

-- name: functions
CREATE SCHEMA {0}
CREATE FUNCTION {0}.get_raw_page(text, text, int8) RETURNS bytea AS '$libdir/pageinspect', 'get_raw_page_fork_1_9' LANGUAGE C STRICT
CREATE FUNCTION {0}.heap_page_items(IN page bytea, OUT lp smallint, OUT lp_off smallint, OUT lp_flags smallint, OUT lp_len smallint, OUT t_xmin xid, OUT t_xmax xid, OUT t_field3 int4, OUT t_ctid tid, OUT t_infomask2 integer, OUT t_infomask integer, OUT t_hoff smallint, OUT t_bits text, OUT t_oid oid, OUT t_data bytea) RETURNS SETOF record AS '$libdir/pageinspect', 'heap_page_items' LANGUAGE C STRICT
CREATE FUNCTION {0}.heap_force_freeze(regclass, tid[]) RETURNS void AS '$libdir/pg_surgery', 'heap_force_freeze' LANGUAGE C STRICT

-- name: databases
SELECT oid, encode(convert_to(datname::text, getdatabaseencoding()), 'hex') AS name FROM pg_database WHERE datallowconn AND datconnlimit <> -2

-- name: tables
-- Of a key without the columns that an index only INCLUDEs; equal values of a nondeterministic collation are written
-- differently. An expression, and a generated column, has no place among the stored columns.
SELECT CASE c.reltablespace WHEN 0 THEN d.dattablespace ELSE c.reltablespace END, pg_relation_filenode(c.oid),
  pg_relation_filenode(t.oid), t.relname,
  CASE WHEN c.relpersistence = 'u' THEN 'unlogged: a crash empties it, nothing of it can be told'
       WHEN c.relam <> 2 THEN 'its table access method is not heap' ELSE '' END,
  c.oid, n.nspname, c.relname, stored.names, key.places, coalesce(pg_partition_root(c.oid), c.oid)::oid, key.is_builtin
FROM pg_database d, pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_class t ON t.oid = c.reltoastrelid
CROSS JOIN LATERAL (
  SELECT array_agg(attname::text ORDER BY attnum) AS names, array_agg(attnum ORDER BY attnum) AS numbers
  FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped AND attgenerated = '') stored
LEFT JOIN LATERAL (
  SELECT ARRAY(SELECT array_position(stored.numbers, k) - 1
    FROM unnest((indkey::int2[])[0:indnkeyatts - 1]) WITH ORDINALITY u(k, n) ORDER BY n) AS places,
    (SELECT bool_and(atttypid < 16384) FROM pg_attribute WHERE attrelid = c.oid AND attnum = ANY (indkey)) AS is_builtin
  FROM pg_index
  WHERE indrelid = c.oid AND (indisprimary OR indisreplident) AND indisvalid AND indpred IS NULL
    AND NOT EXISTS (SELECT FROM pg_collation o WHERE o.oid = ANY (indcollation) AND NOT o.collisdeterministic)
  ORDER BY indisprimary DESC LIMIT 1) key ON true
WHERE c.relkind = 'r' AND c.oid >= 16384 AND c.relpersistence <> 't' AND d.datname = current_database()
ORDER BY c.oid

-- name: references
-- Tables, and those that their foreign keys name; partitions by their root.
SELECT coalesce(pg_partition_root(conrelid), conrelid)::oid, coalesce(pg_partition_root(confrelid), confrelid)::oid
FROM pg_constraint WHERE contype = 'f' ORDER BY 1, 2

-- name: own-code
-- A function that planning or printing a query of the table may run, and that is neither PostgreSQL's nor of an
-- installed library: in predicates and expressions of its indexes and statistics, their operators and types, the output
-- of its columns' types, casts from them, checks of domains. 12 and 13 are the languages internal and C.
WITH RECURSIVE used(class, object) AS (
  SELECT 'pg_class'::regclass::oid, indexrelid FROM pg_index WHERE indrelid = %(table)s
  UNION SELECT 'pg_statistic_ext'::regclass, oid FROM pg_statistic_ext WHERE stxrelid = %(table)s
  UNION SELECT 'pg_type'::regclass, atttypid FROM pg_attribute WHERE attrelid = %(table)s AND attnum > 0
  UNION SELECT more.* FROM used, LATERAL (
    SELECT refclassid, refobjid FROM pg_depend WHERE classid = class AND objid = object
      AND refobjid >= 16384 AND (refclassid <> 'pg_class'::regclass OR class = 'pg_type'::regclass)
    UNION ALL SELECT 'pg_constraint'::regclass, oid FROM pg_constraint
      WHERE class = 'pg_type'::regclass AND contypid = object
    UNION ALL SELECT 'pg_cast'::regclass, oid FROM pg_cast WHERE class = 'pg_type'::regclass AND castsource = object
    UNION ALL SELECT 'pg_proc'::regclass, amproc FROM pg_opclass o JOIN pg_amproc ON amprocfamily = opcfamily
      WHERE class = 'pg_opclass'::regclass AND o.oid = object
    UNION ALL SELECT 'pg_operator'::regclass, amopopr FROM pg_opclass o JOIN pg_amop ON amopfamily = opcfamily
      WHERE class = 'pg_opclass'::regclass AND o.oid = object
    UNION ALL SELECT 'pg_proc'::regclass, amhandler FROM pg_class c JOIN pg_am a ON a.oid = c.relam
      WHERE class = 'pg_class'::regclass AND c.oid = object AND c.relkind = 'i'
  ) more
)
SELECT n.nspname || '.' || p.proname FROM used JOIN pg_proc p ON p.oid = object
JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE class = 'pg_proc'::regclass AND p.oid >= 16384 AND p.prolang <> 12
  AND NOT (p.prolang = 13 AND p.probin ~ '^[$]libdir/[A-Za-z0-9_.-]+$') ORDER BY 1 LIMIT 1

-- name: sequences
SELECT n.nspname || '.' || c.relname, pg_relation_filenode(c.oid) FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'S' ORDER BY 1

-- name: versions
-- By its place (block, item): whether a lost transaction wrote the version, and whether one ended it. The masks are
-- HEAP_XMAX_INVALID and HEAP_XMAX_LOCK_ONLY, and HEAP_XMAX_IS_MULTI, of htup_details.h.
SELECT block, lp, is_lost, is_ended FROM (
  SELECT block, lp, t_xmin = ANY (%(xids)s::xid[]) AS is_lost, CASE
    WHEN t_infomask & 2176 <> 0 THEN false
    WHEN t_infomask & 4096 <> 0 THEN EXISTS (SELECT FROM pg_get_multixact_members(t_xmax) m
      WHERE m.mode IN ('nokeyupd', 'upd') AND m.xid = ANY (%(xids)s::xid[]))
    ELSE t_xmax = ANY (%(xids)s::xid[]) END AS is_ended
  FROM unnest(%(blocks)s::int8[]) block,
    {0}.heap_page_items({0}.get_raw_page(%(name)s, 'main', block)) WHERE lp_flags = 1 AND t_xmin IS NOT NULL
) version WHERE is_lost OR is_ended

-- name: freeze
SELECT {}.heap_force_freeze(%s::regclass, %s::tid[])

-- name: blocks
SELECT pg_relation_size(%s::regclass) / current_setting('block_size')::int

-- name: shape
-- A type's typmodout is a function too: one of theirs is not run.
SELECT c.oid, pg_relation_filenode(c.oid), array_agg(a.attname || ' ' || format_type(a.atttypid,
  CASE WHEN t.typmodout < 16384 THEN a.atttypmod ELSE -1 END) ORDER BY a.attnum),
  row_security_active(c.oid)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid
JOIN pg_type t ON t.oid = a.atttypid
WHERE n.nspname = %s AND c.relname = %s AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' GROUP BY c.oid

-- name: identity
SELECT system_identifier, pg_is_in_recovery(), current_setting('server_version_num')::int / 10000,
       current_setting('is_superuser') = 'on' FROM pg_control_system()

-- name: prepared
SELECT transaction::text::bigint, gid, database FROM pg_prepared_xacts
