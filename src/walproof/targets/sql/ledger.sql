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

-- name: with_amcheck
-- Puts amcheck's schema on the search_path; no row where there is no amcheck.
SELECT set_config('search_path', 'pg_catalog, ' || quote_ident(n.nspname), false)
  FROM pg_extension e
  JOIN pg_namespace n ON n.oid = e.extnamespace
 WHERE e.extname = 'amcheck'

-- name: check
-- amcheck of the ledger's heap; one line per finding. The index is checked before, by bt_index_check. With every argument:
-- a function of others with fewer makes a call with fewer ambiguous, which a drill would call broken data.
SELECT pg_catalog.concat('heap: block ', blkno, ', row ', offnum, ': ', msg)
  FROM verify_heapam('walproof.walproof_ledger'::regclass, false, false, 'none'::text, NULL::bigint, NULL::bigint)
 LIMIT 5

-- name: database
-- Whose a database is; the comment is for people, and tells what earlier versions made.
SELECT d.oid::bigint AS oid, pg_get_userbyid(d.datdba)::text AS owner, me.rolname::text AS me,
       me.rolsuper AS superuser,
       coalesce(shobj_description(d.oid, 'pg_database'), '') AS comment
  FROM pg_catalog.pg_database d, pg_catalog.pg_roles me
 WHERE d.datname = %(name)s AND me.rolname = current_user

-- name: databases_of_role
-- Names of databases that a role owns.
SELECT datname::text AS name FROM pg_catalog.pg_database WHERE pg_get_userbyid(datdba) = %(role)s ORDER BY 1

-- name: owned
-- The columns of this database's catalogs that name an owner. pg_shdepend does not list what pg_monitor and the like own,
-- in whose name each member of theirs may make things.
SELECT fktable::text AS catalog, fkcols[1] AS owner
  FROM pg_get_catalog_foreign_keys() k JOIN pg_class c ON c.oid = k.fktable
 WHERE k.pktable = 'pg_authid'::regclass AND NOT k.is_array AND NOT c.relisshared
   AND has_column_privilege(k.fktable, k.fkcols[1], 'SELECT')
 ORDER BY 1, 2

-- name: strangers
-- Who owns something in this database and is no superuser, but for schema public, which initdb gives to
-- pg_database_owner. Functions, operators, types, tables, schemas, default privileges: all have an owner.
SELECT DISTINCT r.rolname::text AS name
  FROM {owned} AS o(owner, made) JOIN pg_catalog.pg_roles r ON r.oid = o.owner
 WHERE NOT r.rolsuper AND NOT (r.rolname = 'pg_database_owner' AND o.made->>'nspname' IS NOT DISTINCT FROM 'public')
 ORDER BY 1
