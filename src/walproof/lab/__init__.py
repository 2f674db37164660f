"""A real cluster of local processes, one network namespace a member."""
