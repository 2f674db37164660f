-- Asked once per connection: the server and its timeline.
SELECT coalesce(host(inet_server_addr()), ''),
       CASE WHEN pg_is_in_recovery() THEN '' ELSE left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) END
