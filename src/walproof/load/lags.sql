-- Replication lag by stage, in ms, as the standbys last reported; NULL when nothing was sent lately.
SELECT application_name,
       (extract(epoch FROM write_lag) * 1000)::float8,
       (extract(epoch FROM flush_lag) * 1000)::float8,
       (extract(epoch FROM replay_lag) * 1000)::float8
  FROM pg_stat_replication
