"""python -m tests.guard_model [--deep]: explore the protocol and every mutant; print states and shortest losses."""

import sys
import time
from dataclasses import replace

from tests.guard_model.cluster import Size
from tests.guard_model.explore import explore
from tests.guard_model.mutants import ANY_2_OF_3, MUTANTS
from tests.guard_model.protocol import CAREFUL, HAND_OVER, RELEASE, Protocol

_THREE = [Size(2, k, any_of=any_of) for k in (1, 2) for any_of in (True, False)]
SIZES = [
    *((size, HAND_OVER) for size in (*_THREE, ANY_2_OF_3)),
    *((replace(size, failsafe=True, changes=0), HAND_OVER) for size in _THREE),
    (replace(ANY_2_OF_3, releases_early=True), CAREFUL),
    (ANY_2_OF_3, RELEASE),
]
DEEP = [
    *((replace(size, changes=2), HAND_OVER) for size in _THREE),
    *((replace(size, commits=2), HAND_OVER) for size in _THREE),
    *((replace(size, failsafe=True), HAND_OVER) for size in _THREE),
    *((replace(size, releases_early=True), CAREFUL) for size in _THREE),
    *((Size(3, k, changes=0), HAND_OVER) for k in (1, 2, 3)),
]


def main() -> None:
    """What the tests explore; --deep: more commits, more changes of /sync, two guards of four members."""
    for size, protocol in DEEP if "--deep" in sys.argv[1:] else SIZES:
        _show("docs/guard.md" if protocol is HAND_OVER else "another form", size, protocol)
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
