"""What clients do: pgbench, and the ledger writers in processes of their own."""
