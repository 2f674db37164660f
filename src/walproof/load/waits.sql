-- What the load's sessions wait for just now (no wait event means that they compute), and whether a checkpoint or an
-- autovacuum worker runs. A checkpointer with nothing to do waits in CheckpointerMain, in every version.
SELECT CASE backend_type
       WHEN 'client backend' THEN coalesce(wait_event_type || ':' || wait_event, 'cpu')
       ELSE backend_type
       END, count(*)
  FROM pg_stat_activity
 WHERE (backend_type = 'client backend' AND application_name = 'walproof-load')
    OR backend_type = 'autovacuum worker'
    OR (backend_type = 'checkpointer' AND wait_event IS DISTINCT FROM 'CheckpointerMain')
 GROUP BY 1
