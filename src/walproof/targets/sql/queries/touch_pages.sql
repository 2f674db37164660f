-- Changes one row of every page of pgbench_accounts (61 fill one) and with it every page of its index, so that their
-- full-page images are in the WAL before measuring begins; nothing where the table is larger than 512 MB.
UPDATE pgbench_accounts
   SET abalance = abalance
 WHERE aid % 61 = 0 AND pg_table_size('pgbench_accounts') < 512 * 1024 * 1024
