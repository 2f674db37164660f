-- Databases this role may connect to, the current one first, and those it may not.
SELECT datname::text AS name, has_database_privilege(datname, 'CONNECT') AS may
FROM pg_catalog.pg_database
WHERE datallowconn AND NOT datistemplate
ORDER BY datname <> current_database(), datname
