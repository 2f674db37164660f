"""Faults of a lab and how they are cleared: of members, power, disks, the DCS."""
