-- What the load's sessions wait for just now; no wait event means that they compute.
SELECT coalesce(wait_event_type || ':' || wait_event, 'cpu'), count(*)
  FROM pg_stat_activity
 WHERE application_name = 'walproof-load' AND backend_type = 'client backend'
 GROUP BY 1
