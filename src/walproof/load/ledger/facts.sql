-- Asked once per connection: the server, since when it has not crashed (recovery resets statistics), its timeline.
SELECT concat_ws(' ', host(inet_server_addr()), pg_stat_get_bgwriter_stat_reset_time()),
       CASE WHEN pg_is_in_recovery() THEN '' ELSE left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) END
