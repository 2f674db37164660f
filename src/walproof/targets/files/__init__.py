"""Configuration files as the doctor's facts: Patroni, operators, PostgreSQL, HAProxy, PgBouncer. Reads only."""
