"""Figures: one command each, `python -m benchmarks.NAME`; ratios are measured side by side in one run."""
