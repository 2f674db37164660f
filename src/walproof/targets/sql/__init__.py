"""What every target does over SQL: observe, measure, keep the ledger, change settings."""
