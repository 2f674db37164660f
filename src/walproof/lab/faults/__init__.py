"""What breaks in a lab and how it heals: members, power, disks, processors, the DCS."""
