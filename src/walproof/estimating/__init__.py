"""Statistics; knows numbers, not PostgreSQL."""
