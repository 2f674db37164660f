"""This machine: its clock, the programs installed on it, and running them."""
