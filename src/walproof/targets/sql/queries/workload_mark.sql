-- Comments of the tables a workload uses: those we made say so, with their scale.
SELECT c.relname, coalesce(obj_description(c.oid, 'pg_class'), '')
  FROM pg_class c
 WHERE c.oid IN (to_regclass('pgbench_accounts'), to_regclass('walproof.inserted'), to_regclass('sbtest1'))
