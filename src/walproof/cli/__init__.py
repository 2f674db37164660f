"""Arguments in, calls out; no decisions."""
