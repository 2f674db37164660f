"""What one transaction of each workload does, as pgbench scripts."""
