"""What a guarantee costs: blocks, estimates, caveats, breakdown, break-even, prediction."""
