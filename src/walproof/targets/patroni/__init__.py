"""A Patroni cluster as a target."""
