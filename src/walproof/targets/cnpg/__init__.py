"""A CloudNativePG cluster as a target."""
