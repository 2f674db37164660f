"""Prove what your PostgreSQL commits survive, and know what it costs."""
