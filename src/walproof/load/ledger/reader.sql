-- One read: whether this member leads, and the newest visible number of every writer (-1: none yet).
SELECT NOT pg_is_in_recovery(),
       ARRAY(SELECT coalesce((SELECT l.number
                                FROM walproof.walproof_ledger l
                               WHERE l.drill = %(drill)s AND l.writer = w
                               ORDER BY l.number DESC
                               LIMIT 1), -1)
               FROM generate_series(0, %(writers)s - 1) AS w
              ORDER BY w)
