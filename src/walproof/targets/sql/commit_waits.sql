-- What `walproof observe` reads on a leader: statistics views alone, with the rights of pg_monitor. Paste any of them.

-- name: rights
-- Whether this role sees what others wait for, this server's own process, and whether it is a standby.
SELECT pg_has_role('pg_read_all_stats', 'USAGE'), pg_backend_pid(), pg_is_in_recovery(), current_user

-- name: overrides
-- Levels that roles and databases have of their own, stored as they were typed: true, OFF …
SELECT coalesce(r.rolname, ''), coalesce(d.datname, ''),
       CASE WHEN lower(split_part(setting, '=', 2)) IN ('true', 'yes', '1') THEN 'on'
            WHEN lower(split_part(setting, '=', 2)) IN ('false', 'no', '0') THEN 'off'
            ELSE lower(split_part(setting, '=', 2)) END
  FROM pg_db_role_setting s
  LEFT JOIN pg_roles r ON r.oid = s.setrole
  LEFT JOIN pg_database d ON d.oid = s.setdatabase,
       unnest(s.setconfig) AS setting
 WHERE setting LIKE 'synchronous\_commit=%'

-- name: waits
-- Sessions by database, role, application and statement: clients, busy clients, all with a transaction id (their number
-- and the sum of their transactions' ages in s, but for those older than a second), in wait for a standby, for the flush
-- of WAL, for a lock; age in ms of the oldest statement that waits for a standby, and of all that wait for a standby or
-- the flush, as floor(4 log2(ms)). Whatever may commit counts: background workers too. PostgreSQL 14 to 16 write
-- WALSync, 17 and later WalSync; an LWLock is called SyncRep, too. WAL of a new segment file (WalInitWrite, WalInitSync)
-- is written by the session whose flush needs it. It sleeps for $1 s before it looks, as planned by then: what a poll
-- takes of a processor holds up others, but no disk and no network, so that right after it sessions are seen in waits
-- too seldom.
SELECT d.datname, r.rolname, application, statement, sessions, busy, writing, writing_s, standby, flush, lock, longest_ms, ages
  FROM (SELECT datid, usesysid, left(application_name, 64) AS application, CASE state WHEN 'idle' THEN NULL ELSE query_id END AS statement,
               count(*) FILTER (WHERE backend_type = 'client backend') AS sessions,
               count(*) FILTER (WHERE backend_type = 'client backend' AND state <> 'idle') AS busy,
               count(*) FILTER (WHERE backend_xid IS NOT NULL AND xact_start > clock_timestamp() - interval '1 s') AS writing,
               coalesce(sum(extract(epoch FROM clock_timestamp() - xact_start))
                 FILTER (WHERE backend_xid IS NOT NULL AND xact_start > clock_timestamp() - interval '1 s'), 0)::float8 AS writing_s,
               count(*) FILTER (WHERE wait_event_type = 'IPC' AND wait_event = 'SyncRep') AS standby,
               count(*) FILTER (WHERE wait_event_type = 'IO' AND lower(wait_event) IN ('walsync', 'walwrite', 'walinitsync', 'walinitwrite')
                                   OR wait_event_type = 'LWLock' AND wait_event = 'WALWrite') AS flush,
               count(*) FILTER (WHERE wait_event_type = 'Lock') AS lock,
               coalesce(max(extract(epoch FROM clock_timestamp() - greatest(query_start, state_change)) * 1000)
                 FILTER (WHERE wait_event_type = 'IPC' AND wait_event = 'SyncRep'), 0)::float8 AS longest_ms,
               array_agg(floor(4 * ln(greatest(extract(epoch FROM clock_timestamp() - greatest(query_start, state_change))::float8 * 1000, 0.01)) / ln(2.0::float8))::int)
                 FILTER (WHERE query_start IS NOT NULL
                           AND (wait_event_type = 'IPC' AND wait_event = 'SyncRep'
                                OR wait_event_type = 'IO' AND lower(wait_event) IN ('walsync', 'walwrite', 'walinitsync', 'walinitwrite')
                                OR wait_event_type = 'LWLock' AND wait_event = 'WALWrite')) AS ages
          FROM pg_sleep($1) AS slept, LATERAL (SELECT * FROM pg_stat_activity WHERE slept::text = '' OFFSET 0) AS a
         WHERE datid IS NOT NULL AND backend_type NOT IN ('walsender', 'parallel worker') AND pid <> pg_backend_pid()
         GROUP BY 1, 2, 3, 4) AS g
  LEFT JOIN pg_database d ON d.oid = g.datid
  LEFT JOIN pg_roles r ON r.oid = g.usesysid

-- name: blockers
-- How many sessions wait for a lock; of up to eight of them, what share of those that block each is itself in a commit's
-- wait for a standby, and for the flush of WAL: directly, or through the first in a row's queue, who holds the tuple lock
-- and waits for the transaction itself. One whose wait is over meanwhile is left out. pg_blocking_pids takes the lock
-- manager's locks for a moment, so it is asked for few and seldom.
WITH session AS MATERIALIZED (
         SELECT pid, wait_event_type = 'Lock' AND wait_event = 'transactionid' AS queues, left(application_name, 64) AS application,
                CASE WHEN wait_event_type = 'Lock' THEN 'lock'
                     WHEN wait_event_type = 'IPC' AND wait_event = 'SyncRep' THEN 'standby'
                     WHEN wait_event_type = 'IO' AND lower(wait_event) IN ('walsync', 'walwrite', 'walinitsync', 'walinitwrite')
                       OR wait_event_type = 'LWLock' AND wait_event = 'WALWrite' THEN 'flush'
                     ELSE '' END AS wait
           FROM pg_stat_activity
          WHERE datid IS NOT NULL),
     waiter AS MATERIALIZED (SELECT pid FROM session WHERE wait = 'lock' ORDER BY random() LIMIT 8),
     direct AS MATERIALIZED (SELECT w.pid AS waiter, b.pid AS pid, s.queues, coalesce(s.wait, '') AS wait, s.application
                               FROM waiter w, unnest(pg_blocking_pids(w.pid)) AS b(pid) LEFT JOIN session s ON s.pid = b.pid),
     first AS MATERIALIZED (SELECT DISTINCT pid FROM direct WHERE queues LIMIT 8),
     second AS MATERIALIZED (SELECT f.pid AS first, coalesce(s.wait, '') AS wait, s.application
                               FROM first f, unnest(pg_blocking_pids(f.pid)) AS b(pid) LEFT JOIN session s ON s.pid = b.pid),
     root AS (SELECT d.waiter, coalesce(s.wait, d.wait) AS wait, coalesce(s.application, d.application) AS application
                FROM direct d LEFT JOIN second s ON s.first = d.pid)
SELECT (SELECT count(*) FROM session WHERE wait = 'lock'),
       coalesce(avg((wait = 'standby')::int) FILTER (WHERE wait <> 'lock'), 0)::float8,
       coalesce(avg((wait = 'flush')::int) FILTER (WHERE wait <> 'lock'), 0)::float8,
       min(application) FILTER (WHERE wait = 'standby')
  FROM root GROUP BY waiter

-- name: outcomes
-- How many of up to 64 transactions, picked at random from the ids $1 to $2, committed, and how many rolled back.
SELECT count(*) FILTER (WHERE status = 'committed'), count(*) FILTER (WHERE status = 'aborted')
  FROM (SELECT pg_xact_status(($1::bigint + floor(random() * ($2::bigint - $1::bigint)))::bigint::text::xid8) AS status
          FROM generate_series(1, least(64, $2::bigint - $1::bigint))) AS picked

-- name: standbys
-- Standbys: the last lags that they reported, in ms, bytes behind the leader's flush, and the process that serves each:
-- several may have one name. What PostgreSQL waits for in no case (syncrep.c: no flush position, or not named) and what
-- is no physical standby (pg_receivewal replays nothing; a subscriber's slot is logical) streams, but not as a standby.
SELECT application_name,
       CASE WHEN state = 'streaming' AND (flush_lsn IS NULL OR sync_priority = 0 AND (replay_lsn IS NULL OR EXISTS (
                      SELECT FROM pg_replication_slots WHERE active_pid = pid AND slot_type = 'logical')))
            THEN 'no standby' ELSE state END,
       (extract(epoch FROM write_lag) * 1000)::float8,
       (extract(epoch FROM flush_lag) * 1000)::float8,
       (extract(epoch FROM replay_lag) * 1000)::float8,
       coalesce(pg_current_wal_flush_lsn() - write_lsn, 0)::bigint,
       coalesce(pg_current_wal_flush_lsn() - flush_lsn, 0)::bigint,
       coalesce(pg_current_wal_flush_lsn() - replay_lsn, 0)::bigint,
       pid
  FROM pg_stat_replication

-- name: wal
-- PostgreSQL 18: bytes of WAL that each session has written, with its database, role and application. It reports at the
-- end of a transaction, at most once a second. What a parallel worker writes is counted by its leader too.
SELECT a.datname, a.usename, left(a.application_name, 64), a.pid || ' ' || extract(epoch FROM a.backend_start), w.wal_bytes
  FROM pg_stat_activity a CROSS JOIN LATERAL pg_stat_get_backend_wal(a.pid) AS w
 WHERE a.datid IS NOT NULL AND a.backend_type NOT IN ('walsender', 'parallel worker') AND w.wal_bytes > 0

-- name: level
-- The level in effect for sessions without one of their own.
SELECT current_setting('synchronous_commit')
