-- The comment on a database: how walproof knows its own.
SELECT datname::text AS name, shobj_description(oid, 'pg_database') AS comment
FROM pg_catalog.pg_database
WHERE datname = %(name)s
