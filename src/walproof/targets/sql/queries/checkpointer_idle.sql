-- Whether the checkpointer is known to have nothing to do: a checkpoint that runs made full-page images necessary.
SELECT coalesce(bool_and(wait_event = 'CheckpointerMain'), false)
  FROM pg_stat_activity
 WHERE backend_type = 'checkpointer'
