"""A simulated cluster on a virtual clock as a target."""
