"""Measured drills and assumed failure rates → a year's outage and loss of a configuration."""
