-- Where the last finished checkpoint began, and the seconds between timed ones.
SELECT redo_lsn::text, extract(epoch FROM current_setting('checkpoint_timeout')::interval)::float8
  FROM pg_control_checkpoint()
