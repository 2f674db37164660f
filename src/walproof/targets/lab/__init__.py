"""The lab as a target."""
