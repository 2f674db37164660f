"""The cluster live: page, terminal, Prometheus metrics, alert rules."""
