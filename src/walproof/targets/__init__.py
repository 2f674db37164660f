"""What can be priced and proved: the lab, external clusters, and a simulated one. One folder a target."""
