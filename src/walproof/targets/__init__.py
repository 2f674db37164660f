"""What can be priced and proved: the lab, yours by REST or DSN, and a simulated one."""
