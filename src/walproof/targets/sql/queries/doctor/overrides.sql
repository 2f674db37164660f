-- Roles and databases with a synchronous_commit of their own, and the statement that takes each back.
SELECT CASE WHEN s.setrole = 0 THEN 'database' ELSE 'role' END AS what,
       coalesce(r.rolname, d.datname)::text AS name,
       CASE WHEN s.setrole <> 0 THEN coalesce(d.datname::text, '') ELSE '' END AS database,
       lower(split_part(c.entry, '=', 2)) AS value,
       CASE WHEN s.setrole = 0 THEN format('ALTER DATABASE %I RESET synchronous_commit;', d.datname)
            WHEN s.setdatabase = 0 THEN format('ALTER ROLE %I RESET synchronous_commit;', r.rolname)
            ELSE format('ALTER ROLE %I IN DATABASE %I RESET synchronous_commit;', r.rolname, d.datname) END AS reset
FROM pg_catalog.pg_db_role_setting s
CROSS JOIN LATERAL unnest(s.setconfig) AS c(entry)
LEFT JOIN pg_catalog.pg_roles r ON r.oid = s.setrole
LEFT JOIN pg_catalog.pg_database d ON d.oid = s.setdatabase
WHERE c.entry LIKE 'synchronous\_commit=%' AND (s.setrole <> 0 OR s.setdatabase <> 0)
ORDER BY 1, 2, 3
