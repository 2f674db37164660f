"""`python -m benchmarks.price NAME [options]`: what `walproof price` promises, one NAME for each figure of docs/.

truth, stalls, quantiles, searches and million are simulated; the others measure on a lab of their own.
"""

from benchmarks.command import command
from benchmarks.price.accuracy import between_runs, carry_over, honesty, precision
from benchmarks.price.cost import breakdown, own_cost, prediction, processors, tuning
from benchmarks.price.simulated import million, quantiles, searches, stalls, truth

if __name__ == "__main__":
    command(
        truth, stalls, quantiles, searches, million,
        precision, honesty, between_runs, carry_over,
        breakdown, prediction, tuning,
        own_cost, processors,
    )  # fmt: skip
