"""Plain PostgreSQL with streaming replication as a target."""
