-- What is asked of the copy, and of the new primary. Answers are data (answers.py): names and numbers, never SQL. The old
-- server's superuser could replace any function of pg_catalog: arguments have the exact type, so that no other fits better.

-- name: functions
CREATE SCHEMA {0}
CREATE FUNCTION {0}.get_raw_page(text, text, int8) RETURNS bytea AS '$libdir/pageinspect', 'get_raw_page_fork_1_9' LANGUAGE C STRICT
CREATE FUNCTION {0}.heap_page_items(IN page bytea, OUT lp smallint, OUT lp_off smallint, OUT lp_flags smallint, OUT lp_len smallint, OUT t_xmin xid, OUT t_xmax xid, OUT t_field3 int4, OUT t_ctid tid, OUT t_infomask2 integer, OUT t_infomask integer, OUT t_hoff smallint, OUT t_bits text, OUT t_oid oid, OUT t_data bytea) RETURNS SETOF record AS '$libdir/pageinspect', 'heap_page_items' LANGUAGE C STRICT
CREATE FUNCTION {0}.heap_force_freeze(regclass, tid[]) RETURNS void AS '$libdir/pg_surgery', 'heap_force_freeze' LANGUAGE C STRICT

-- name: databases
UPDATE pg_catalog.pg_database SET datallowconn = true WHERE NOT datallowconn
SELECT oid, pg_catalog.encode(pg_catalog.textsend(datname::pg_catalog.text), 'hex'::pg_catalog.text) AS name FROM pg_catalog.pg_database

-- name: relations
-- Tables, by what no role writes: without names.
SELECT c.oid, CASE c.reltablespace WHEN 0 THEN d.dattablespace ELSE c.reltablespace END,
  pg_relation_filenode(c.oid::regclass), c.relpersistence = 'u',
  coalesce(pg_partition_root(c.oid::regclass), c.oid::regclass)::oid
FROM pg_database d, pg_class c
WHERE c.relkind = 'r' AND c.oid >= 16384 AND c.relpersistence <> 't' AND d.datname = current_database()
ORDER BY c.oid

-- name: names
SELECT c.oid, n.nspname::text, c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = ANY (%(oids)s::oid[])

-- name: tables
-- Of a key without the columns that an index only INCLUDEs; equal values of a nondeterministic collation are written
-- differently. An expression, and a generated column, has no place among the stored columns. Types named reg... have
-- no = of their own. Then come columns of unique indexes as their places in a text, what it is a partition of,
-- and the attnum of each column.
SELECT CASE c.reltablespace WHEN 0 THEN d.dattablespace ELSE c.reltablespace END, pg_relation_filenode(c.oid::regclass),
  pg_relation_filenode(t.oid::regclass), t.relname::text, c.relpersistence = 'u', c.relam = 2,
  c.oid, n.nspname::text, c.relname::text, coalesce(stored.names, '{}'), coalesce(key.places, '{}'),
  coalesce(pg_partition_root(c.oid::regclass), c.oid::regclass)::oid, coalesce(key.is_builtin, false),
  EXISTS (SELECT FROM pg_index WHERE indrelid = c.oid AND NOT indimmediate),
  (SELECT count(*) > 1 FROM pg_index WHERE indrelid = c.oid AND (indisunique OR indisexclusion)),
  ARRAY(SELECT tgname::text FROM pg_trigger
    WHERE tgrelid = c.oid AND NOT tgisinternal AND tgenabled IN ('O', 'A') ORDER BY tgname),
  ARRAY(SELECT extname::text FROM pg_depend JOIN pg_extension x ON x.oid = refobjid
    WHERE classid = 'pg_class'::regclass AND objid = c.oid AND refclassid = 'pg_extension'::regclass AND deptype = 'e'),
  ARRAY(SELECT array_to_string(u.places, ' '::text) FROM pg_index CROSS JOIN LATERAL (
      SELECT ARRAY(SELECT array_position(stored.numbers, k) - 1 FROM unnest((indkey::int2[])[0:indnkeyatts - 1]) k) AS places) u
    WHERE indrelid = c.oid AND indisunique AND indisvalid AND indpred IS NULL AND array_position(u.places, NULL) IS NULL
      AND NOT EXISTS (SELECT FROM pg_collation o WHERE o.oid = ANY (indcollation) AND NOT o.collisdeterministic)
      AND NOT EXISTS (SELECT FROM pg_attribute JOIN pg_type y ON y.oid = atttypid WHERE attrelid = c.oid
        AND attnum = ANY (indkey) AND (atttypid >= 16384 OR typname::text ~ '^reg')) ORDER BY indexrelid),
  ARRAY(SELECT relid::oid FROM pg_partition_ancestors(c.oid::regclass) WHERE relid::oid <> c.oid),
  coalesce(stored.numbers, '{}')
FROM pg_database d, pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_class t ON t.oid = c.reltoastrelid
CROSS JOIN LATERAL (
  SELECT array_agg(attname::text ORDER BY attnum) AS names, array_agg(attnum ORDER BY attnum) AS numbers
  FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped AND attgenerated = '') stored
LEFT JOIN LATERAL (
  SELECT ARRAY(SELECT array_position(stored.numbers, k) - 1
    FROM unnest((indkey::int2[])[0:indnkeyatts - 1]) WITH ORDINALITY u(k, n) ORDER BY n) AS places,
    (SELECT bool_and(atttypid < 16384 AND typname::text !~ '^reg') FROM pg_attribute JOIN pg_type y ON y.oid = atttypid
      WHERE attrelid = c.oid AND attnum = ANY (indkey)) AS is_builtin
  FROM pg_index
  WHERE indrelid = c.oid AND (indisprimary OR indisreplident) AND indisvalid AND indpred IS NULL
    AND NOT EXISTS (SELECT FROM pg_collation o WHERE o.oid = ANY (indcollation) AND NOT o.collisdeterministic)
  ORDER BY indisprimary DESC LIMIT 1) key ON array_position(key.places, NULL) IS NULL
WHERE c.oid = ANY (%(oids)s::oid[]) AND d.datname = current_database()
ORDER BY c.oid

-- name: named-by
-- Foreign keys, and the tables that they name. One of a partition that repeats its parent's is left out.
SELECT k.oid, k.confrelid, k.conrelid FROM pg_constraint k WHERE k.contype = 'f'
  AND NOT EXISTS (SELECT FROM pg_constraint up WHERE up.oid = k.conparentid AND up.confrelid = k.confrelid)
ORDER BY k.oid

-- name: foreign-keys
-- A column of each foreign key: the table it names, its id, its own table, whether operators and types of all its
-- columns are PostgreSQL's own, whether it can wait for the transaction's end, whether ON UPDATE takes a value from those
-- that name, both columns with the operator between, and whether values that are equal by it may be written differently
-- in the two: not of one type, or of kinds of integers or of text of any length.
SELECT k.confrelid, k.oid, fn.nspname::text, f.relname::text, f.oid,
  bool_and(o.oid < 16384 AND own.atttypid < 16384 AND theirs.atttypid < 16384) OVER (PARTITION BY k.oid),
  k.condeferrable, k.confupdtype IN ('n', 'd'),
  own.attname::text, opn.nspname::text, o.oprname::text, theirs.attname::text,
  EXISTS (SELECT FROM pg_collation l WHERE l.oid IN (own.attcollation, theirs.attcollation) AND NOT l.collisdeterministic)
  OR NOT (SELECT CASE WHEN array_agg(known.type) <@ '{20,21,23}'::oid[] OR array_agg(known.type) <@ '{25,1043}'::oid[] THEN true
    ELSE min(known.type) = max(known.type) AND min(known.mod) = max(known.mod) AND bool_and(known.kind = 'e' OR known.type = ANY
      ('{16,17,18,19,26,869,1042,1082,1083,1114,1184,2950}'::oid[]) OR known.type = 1700 AND known.mod >= 0) END
    FROM (SELECT CASE y.typtype WHEN 'd' THEN y.typbasetype ELSE y.oid END AS type, y.typtype AS kind,
      CASE y.typtype WHEN 'd' THEN y.typtypmod ELSE a.mod END AS mod
      FROM (VALUES (own.atttypid, own.atttypmod), (theirs.atttypid, theirs.atttypmod)) a(type, mod) JOIN pg_type y ON y.oid = a.type
    ) known)
FROM pg_constraint k JOIN pg_class f ON f.oid = k.conrelid JOIN pg_namespace fn ON fn.oid = f.relnamespace
CROSS JOIN LATERAL unnest(k.conkey, k.confkey, k.conpfeqop) AS part(naming, named, equal)
JOIN pg_attribute theirs ON theirs.attrelid = k.conrelid AND theirs.attnum = part.naming
JOIN pg_attribute own ON own.attrelid = k.confrelid AND own.attnum = part.named
JOIN pg_operator o ON o.oid = part.equal JOIN pg_namespace opn ON opn.oid = o.oprnamespace
WHERE k.oid = ANY (%(oids)s::oid[])
ORDER BY k.oid, part.naming

-- name: references
-- Tables, and those that their foreign keys name; partitions by their root.
SELECT coalesce(pg_partition_root(conrelid::regclass), conrelid::regclass)::oid,
  coalesce(pg_partition_root(confrelid::regclass), confrelid::regclass)::oid
FROM pg_constraint WHERE contype = 'f' ORDER BY 1, 2

-- name: own-code
-- A function that planning or printing a query of the table may run, or writing to it, and that is neither PostgreSQL's
-- nor of an installed library. pg_depend is followed from what a query plans and prints (indexes, statistics, types), or
-- from the table, by two kinds of edges: to what an object uses (so from a partition to its parent's key), and to what is
-- a part of it (indexes, constraints, defaults, triggers, rules, checks of domains, functions of operator classes). No
-- other table is a part: see outside. A cast counts from a type that is reached to another, or to one of PostgreSQL's own,
-- which takes the owner of its source: a stranger's leads to a type of his, which nothing of the table names. A domain may
-- be given a check while rows are written. 12 and 13 are the languages
-- internal and C. PostgreSQL's own functions have no edges, and some run text that is SQL or the name of a type
-- (query_to_xml, pg_input_is_valid) or look for casts (to_jsonb, quote_literal, JSON_ARRAY, text || anything, whose function
-- is of the language 14, SQL), which an owner may add at any
-- time: in defaults and checks, which alone may call what is not immutable, there are none but those that are known to run
-- nothing.
WITH RECURSIVE reached(class, object) AS (
  SELECT 'pg_class'::regclass::oid, indexrelid FROM pg_index WHERE indrelid = %(table)s::oid
  UNION SELECT 'pg_statistic_ext'::regclass::oid, oid FROM pg_statistic_ext WHERE stxrelid = %(table)s::oid
  UNION SELECT 'pg_type'::regclass::oid, atttypid FROM pg_attribute WHERE attrelid = %(table)s::oid AND attnum > 0
  UNION SELECT 'pg_class'::regclass::oid, %(table)s::oid WHERE %(writes)s::bool
  UNION SELECT more.* FROM reached, LATERAL (
    SELECT refclassid, refobjid FROM pg_depend WHERE classid = class AND objid = object AND refobjid >= 16384
      AND (refclassid <> 'pg_class'::regclass OR class = 'pg_type'::regclass
        OR class = 'pg_class'::regclass AND %(writes)s::bool)
    UNION ALL SELECT classid, objid FROM pg_depend LEFT JOIN pg_class part
        ON classid = 'pg_class'::regclass AND part.oid = objid
      WHERE refclassid = class AND refobjid = object AND deptype IN ('a', 'i', 'P', 'S') AND classid <> 'pg_policy'::regclass
        AND (part.oid IS NULL OR part.relkind IN ('i', 'I', 'c'))
        AND (%(writes)s::bool OR class IN ('pg_type'::regclass, 'pg_opclass'::regclass, 'pg_opfamily'::regclass))
    UNION ALL SELECT 'pg_proc'::regclass::oid, amhandler FROM pg_class c JOIN pg_am a ON a.oid = c.relam
      WHERE class = 'pg_class'::regclass AND c.oid = object AND c.relkind IN ('i', 'I')
  ) more
), expression(tree) AS (
  SELECT adbin::text FROM reached JOIN pg_attrdef ON oid = object WHERE class = 'pg_attrdef'::regclass
  UNION ALL SELECT conbin::text FROM reached JOIN pg_constraint ON oid = object WHERE class = 'pg_constraint'::regclass
)
SELECT found.name FROM (
  SELECT n.nspname::text || '.'::text || p.proname::text FROM (
    SELECT object FROM reached WHERE class = 'pg_proc'::regclass
    UNION SELECT castfunc FROM reached JOIN pg_cast ON castsource = object WHERE class = 'pg_type'::regclass
      AND (casttarget < 16384 OR casttarget IN (SELECT object FROM reached WHERE class = 'pg_type'::regclass))
  ) used(object) JOIN pg_proc p ON p.oid = object JOIN pg_namespace n ON n.oid = p.pronamespace
  WHERE p.oid >= 16384 AND p.prolang <> 12
    AND NOT (p.prolang = 13 AND p.probin ~ '^[$]libdir/[A-Za-z0-9_.-]+$')
  UNION SELECT n.nspname::text || '.'::text || y.typname::text FROM reached JOIN pg_type y ON y.oid = object
  JOIN pg_namespace n ON n.oid = y.typnamespace
  WHERE %(writes)s::bool AND class = 'pg_type'::regclass AND y.oid >= 16384 AND y.typtype = 'd'
  UNION SELECT 'an SQL/JSON constructor'::text FROM expression WHERE %(writes)s::bool AND tree ~ '[{]JSON'
  UNION SELECT n.nspname::text || '.'::text || p.proname::text
  FROM expression, regexp_matches(tree, ':funcid ([0-9]+)', 'g') called, pg_proc p
  JOIN pg_namespace n ON n.oid = p.pronamespace
  WHERE %(writes)s::bool AND p.oid = called[1]::oid AND p.provolatile <> 'i' AND p.proname <> ALL
    ('{age,clock_timestamp,concat,concat_ws,currval,current_database,current_setting,current_user,date,date_part,'
     'date_trunc,format,gen_random_uuid,inet_client_addr,lastval,make_timestamptz,nextval,now,pg_backend_pid,'
     'pg_current_xact_id,random,session_user,statement_timestamp,time,timeofday,timestamp,timestamptz,'
     'timetz,timezone,to_char,to_date,to_timestamp,to_tsvector,transaction_timestamp,txid_current,'
     'uuid_generate_v1,uuid_generate_v1mc,uuid_generate_v4,uuidv4,uuidv7}'::name[])
  UNION SELECT n.nspname::text || '.'::text || p.proname::text
  FROM expression, regexp_matches(tree, ':opno ([0-9]+)', 'g') used, pg_operator o, pg_proc p
  JOIN pg_namespace n ON n.oid = p.pronamespace
  WHERE %(writes)s::bool AND o.oid = used[1]::oid AND p.oid = o.oprcode AND p.provolatile <> 'i' AND p.prolang = 14) found(name)
ORDER BY 1 LIMIT 1

-- name: used
SELECT oid, pg_relation_filenode(oid::regclass) FROM pg_class WHERE relkind = 'S' ORDER BY oid

-- name: files
-- Of relations of any kind, as many as have one of their own.
SELECT pg_relation_filenode(oid::regclass) FROM pg_class WHERE relkind IN ('r', 't', 'S', 'm', 'i')

-- name: catalogs
-- With their file nodes, by database; of what all share any node is one's.
SELECT d.oid::int8, pg_relation_filenode(c.oid::regclass)
FROM pg_database d, pg_class c
WHERE d.datname = current_database() AND c.oid < 16384 AND NOT c.relisshared AND c.relkind IN ('r', 't')

-- name: sequences
-- With the value they are at, NULL for one that was never used; the direction is the sign of the step.
SELECT n.nspname::text, c.relname::text, pg_relation_filenode(c.oid::regclass), pg_sequence_last_value(c.oid::regclass),
  s.seqincrement, c.oid
FROM pg_sequence s JOIN pg_class c ON c.oid = s.seqrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = ANY (%(oids)s::oid[]) ORDER BY 1, 2

-- name: versions
-- By its place (block, item): who wrote the version, and whether that was lost work, which lost transaction ended it, whether
-- it was written by an UPDATE in its place of partitions, and which version replaced it: a DELETE leaves its own place in
-- t_ctid. The masks are HEAP_XMAX_INVALID and HEAP_XMAX_LOCK_ONLY, HEAP_XMAX_IS_MULTI, HEAP_UPDATED.
SELECT block, lp, t_xmin::text::int8, is_lost, ended_by::text::int8, is_update, t_ctid::text FROM (
  SELECT block, lp, t_xmin, t_ctid, t_xmin = ANY (%(xids)s::xid[]) AS is_lost, CASE
    WHEN t_infomask & 2176 <> 0 THEN NULL
    WHEN t_infomask & 4096 <> 0 THEN (SELECT m.xid FROM pg_get_multixact_members(t_xmax) m
      WHERE m.mode IN ('nokeyupd', 'upd') AND m.xid = ANY (%(xids)s::xid[]))
    WHEN t_xmax = ANY (%(xids)s::xid[]) THEN t_xmax END AS ended_by, t_infomask & 8192 <> 0 AS is_update
  FROM unnest(%(blocks)s::int8[]) block,
    {0}.heap_page_items({0}.get_raw_page(%(name)s, 'main', block)) WHERE lp_flags = 1 AND t_xmin IS NOT NULL
) version WHERE is_lost OR ended_by IS NOT NULL

-- name: written-since
-- Whether the new primary wrote a row since the fork, whose next transaction id is {0}: they go round at 2^32. What {1}
-- wrote, which were prepared before the fork, is there only since one of them was committed after it. The SQL of lost
-- rows asks it too, by any search_path.
(xmin OPERATOR(pg_catalog.=) ANY ('{{{1}}}'::pg_catalog.xid[]) OR (xmin::pg_catalog.text::pg_catalog.int8 OPERATOR(pg_catalog.-) {0} OPERATOR(pg_catalog.+) 4294967296) OPERATOR(pg_catalog.%) 4294967296 OPERATOR(pg_catalog.<) ((pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::pg_catalog.text::pg_catalog.int8 OPERATOR(pg_catalog.-) {0}) OPERATOR(pg_catalog.%) 4294967296))

-- name: stale
-- Blocks that are older than the record which wrote there last, zeros, or not there. A page begins with the position
-- behind the last record that wrote it, in two halves.
SELECT block FROM unnest(%(blocks)s::int8[], %(lsns)s::int8[]) record(block, lsn),
  LATERAL (SELECT CASE WHEN block < pg_relation_size(%(name)s::text::regclass) / current_setting('block_size')::int
    THEN {0}.get_raw_page(%(name)s::text, 'main'::text, block) END) page(raw),
  LATERAL (SELECT sum(get_byte(raw, place)::int8 << (place + 4) %% 8 * 8) FROM generate_series(0, 7) place) position(lsn)
WHERE coalesce(position.lsn, 0) <= record.lsn ORDER BY 1

-- name: freeze
SELECT {}.heap_force_freeze(%s::regclass, %s::tid[])

-- name: blocks
SELECT pg_relation_size(%s::regclass) / current_setting('block_size')::int

-- name: shape
-- A column that was dropped and added again has its old name and type, and another attnum. A type's typmodout is a
-- function too: one of theirs is not run.
SELECT c.oid, pg_relation_filenode(c.oid::regclass),
  array_agg(a.attnum::text || ' '::text || a.attname::text || ' '::text || format_type(a.atttypid,
    CASE WHEN t.typmodout < 16384 THEN a.atttypmod ELSE -1 END) ORDER BY a.attnum),
  row_security_active(c.oid)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid
JOIN pg_type t ON t.oid = a.atttypid
WHERE n.nspname = %s::name AND c.relname = %s::name AND c.relkind = 'r'
  AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' GROUP BY c.oid

-- name: lock
-- Neither owner nor superuser can swap, alter, index or trigger a table under this lock; rows are read and written on.
LOCK TABLE ONLY {} IN SHARE UPDATE EXCLUSIVE MODE

-- name: identity
-- The last column: whether the session, or a function in it, can become a superuser, run programs, or give roles away
-- (CREATEROLE gave any away before 16, and since then those that it made).
SELECT system_identifier, pg_is_in_recovery(), current_setting('server_version_num')::int / 10000,
  EXISTS (SELECT FROM pg_roles WHERE pg_has_role(session_user, oid, 'MEMBER') AND (rolsuper OR rolcreaterole OR rolname IN
    ('pg_execute_server_program', 'pg_write_server_files', 'pg_read_server_files')))
FROM pg_control_system()

-- name: leads
-- Also where a database's owner says in which schemas names are looked up: first where there is one of that name.
SELECT c.system_identifier, CASE WHEN NOT pg_catalog.pg_is_in_recovery()
  THEN pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()) END
FROM pg_catalog.pg_control_system() AS c

-- name: prepared
SELECT transaction::text::bigint, gid, database::text FROM pg_prepared_xacts

-- name: ended-there
-- What became of transactions of the last 2^31: their ids go round at 2^32. One that no snapshot knows yet has not ended.
SELECT xid, CASE WHEN (next - xid + 4294967296) %% 4294967296 BETWEEN 1 AND least(2147483648, next)
  THEN pg_xact_status((next - (next - xid + 4294967296) %% 4294967296)::text::xid8) ELSE 'in progress' END
FROM unnest(%s::int8[]) xid, (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::int8) AS now(next)

-- name: outside
-- Triggers and rules that the SQL may fire: of these tables, and of those that a foreign key's action may write to. And the
-- tables that a check of a foreign key only reads, on either side of it: planning that runs their owner's code too, as the
-- owner, who can leave a deferred trigger behind that runs as us.
WITH RECURSIVE touched(oid) AS (
  SELECT unnest(%s::oid[])
  UNION SELECT more.oid FROM touched CROSS JOIN LATERAL (
    SELECT conrelid FROM pg_constraint WHERE confrelid = touched.oid AND contype = 'f'
      AND (confupdtype IN ('c', 'n', 'd') OR confdeltype IN ('c', 'n', 'd'))
    UNION ALL SELECT inhrelid FROM pg_inherits WHERE inhparent = touched.oid) AS more(oid)),
checked(oid) AS (
  SELECT unnest(ARRAY[conrelid, confrelid]) FROM pg_constraint
  WHERE contype = 'f' AND (conrelid IN (SELECT oid FROM touched) OR confrelid IN (SELECT oid FROM touched))
  UNION SELECT inhrelid FROM checked JOIN pg_inherits ON inhparent = checked.oid)
SELECT c.oid, n.nspname::text, c.relname::text, c.relkind::text, found.is_written, own.name
FROM (SELECT oid, true FROM touched UNION ALL SELECT oid, false FROM checked WHERE oid NOT IN (SELECT oid FROM touched)
) found(oid, is_written) JOIN pg_class c USING (oid) JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN LATERAL (
  SELECT tgname::text FROM pg_trigger WHERE tgrelid = c.oid AND NOT tgisinternal AND tgenabled IN ('O', 'A')
  UNION ALL SELECT rulename::text FROM pg_rewrite
    WHERE ev_class = c.oid AND ev_type <> '1' AND ev_enabled IN ('O', 'A')
) AS own(name) ON is_written ORDER BY 3, 6

-- name: limits
-- The first ends the session, which no function catches, once our connection is gone: with us, or cut by us.
SET LOCAL client_connection_check_interval = '2s';
SET LOCAL lock_timeout = '300ms';
SET LOCAL statement_timeout = '30s';
SET LOCAL idle_in_transaction_session_timeout = '60s'
