-- Whether a table of the ledger's name exists, and its comment: ours says so.
SELECT c.oid::regclass::text, obj_description(c.oid, 'pg_class')
  FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = 'walproof' AND c.relname = 'walproof_ledger'
