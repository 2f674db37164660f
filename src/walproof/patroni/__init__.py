"""Patroni's REST interface and its dynamic configuration as values; used by the lab and by the Patroni target."""
