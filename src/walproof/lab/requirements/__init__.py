"""What a lab needs of a machine: observed by probes, judged from what they printed."""
