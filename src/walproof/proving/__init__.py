"""What a guarantee survives: faults, ledger, outage, witnesses, judge."""
