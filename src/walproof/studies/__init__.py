"""Declared experiments and the published studies reproduced."""
