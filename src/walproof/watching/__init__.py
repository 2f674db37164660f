"""Events and views folded into a live picture: page, terminal, metrics."""
