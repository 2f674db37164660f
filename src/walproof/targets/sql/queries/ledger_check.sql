-- amcheck of the ledger's heap; one line per finding. The index is checked before, by bt_index_check.
SELECT format('heap: block %s, row %s: %s', blkno, offnum, msg)
  FROM verify_heapam('walproof.walproof_ledger'::regclass)
 LIMIT 5
