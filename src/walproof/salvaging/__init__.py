"""What a failover lost: the old primary's commits after the fork, read from a copy of its data directory."""
