-- Settings the checks read, with their unit and where each was set (file names need pg_read_all_settings).
SELECT name, setting AS value, coalesce(unit, '') AS unit, source, coalesce(sourcefile, '') AS file,
       sourceline AS line, pending_restart
FROM pg_catalog.pg_settings
