-- Asked once per connection: the server, its timeline, and which standbys commits there wait for.
SELECT coalesce(host(inet_server_addr()), ''),
       CASE WHEN pg_is_in_recovery() THEN '' ELSE left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) END,
       current_setting('synchronous_standby_names'),
       current_setting('synchronous_commit')
