-- Functions and procedures of this database which set synchronous_commit while they run.
SELECT 'function' AS what, p.oid::regprocedure::text AS name, current_database()::text AS database,
       lower(split_part(c.entry, '=', 2)) AS value,
       format('ALTER ROUTINE %s RESET synchronous_commit;', p.oid::regprocedure) AS reset
FROM pg_catalog.pg_proc p
CROSS JOIN LATERAL unnest(p.proconfig) AS c(entry)
WHERE c.entry LIKE 'synchronous\_commit=%'
ORDER BY 2
