"""The doctor: pure checks over one snapshot of facts; never connects, never changes anything."""
