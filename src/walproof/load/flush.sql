-- Flushes all WAL up to here, then says where that is, in bytes: a commit that wrote WAL waits for it.
SELECT (pg_logical_emit_message(true, 'walproof', '') - '0/0')::bigint
