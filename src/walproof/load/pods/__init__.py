"""Load in pods of a cluster: what runs there as it is asked, and this side of it. Knows no Kubernetes."""
