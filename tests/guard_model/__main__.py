"""python -m tests.guard_model [--deep]: explore the protocol and every mutant; print states and shortest losses."""

import sys
import time

from tests.guard_model.cluster import Size
from tests.guard_model.explore import explore
from tests.guard_model.mutants import ANY_2_OF_3, MUTANTS
from tests.guard_model.protocol import Protocol

SIZES = [Size(2, 1), Size(2, 2), Size(2, 1, any_of=False), Size(2, 2, any_of=False), ANY_2_OF_3]
DEEP = [
    *(Size(2, k, any_of=any_of, changes=2) for k in (1, 2) for any_of in (True, False)),
    *(Size(2, k, any_of=any_of, commits=2) for k in (1, 2) for any_of in (True, False)),
    *(Size(3, k, changes=0) for k in (1, 2, 3)),
]


def main() -> None:
    """Everything the tests explore; with --deep two commits, two changes of /sync, four members with two guards."""
    for size in DEEP if "--deep" in sys.argv[1:] else SIZES:
        _show(str(size), size, Protocol())
    for missing, mutant in MUTANTS.items():
        _show(f"without a condition: {missing}", mutant.size, mutant.protocol)


def _show(title: str, size: Size, protocol: Protocol) -> None:
    began = time.monotonic()
    found = explore(size, protocol)
    took = time.monotonic() - began
    print(f"{title} [{size}; {size.commits} commits, {size.changes} changes, {size.guards} guards]: "
          f"{found.states} states, {took:.1f} s")  # fmt: skip
    print(found if found.story else "    no loss", flush=True)


if __name__ == "__main__":
    main()
