"""What a guarantee costs: blocks, estimates, doubts, anatomy, break-even, prediction."""
