-- Flushes all WAL up to here, then says where it ends: a commit that wrote WAL waits for it (synchronous_commit local).
SELECT pg_logical_emit_message(true, 'walproof', '')
