-- Backends which wait for a synchronous standby just now; wait events of others need pg_monitor.
SELECT pid, coalesce(usename::text, '') AS "user",
       greatest(extract(epoch FROM clock_timestamp() - query_start), 0)::float8 AS seconds
FROM pg_stat_activity
WHERE wait_event_type = 'IPC' AND wait_event = 'SyncRep' AND backend_type = 'client backend'
ORDER BY seconds DESC
