"""Where the last run of the tests spent its time: `python -m tools.where_tests_spend [--most 40] [--tests]`.

Reads tests/durations.json, which every run of pytest writes, and prints for each folder and each file, slowest first:
seconds of wall, summed over the workers; seconds of processor, of the tests' own processes and those they wait for
(not of a lab's servers); how many tests; and what they waited in longest.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

KEPT = Path(__file__).parents[1] / "tests" / "durations.json"


def grouped(tests: dict[str, Any], name: Any) -> list[tuple[str, int, float, float, dict[str, float]]]:
    """Name, tests, wall seconds, processor seconds and waits of each group, slowest first.

    >>> spent = {"wall_s": 2.0, "processor_s": 0.5, "waits": {"a subprocess": 1.5}}
    >>> grouped({"test_a.py::one": spent, "test_a.py::two": spent}, lambda node: node.split("::")[0])
    [('test_a.py', 2, 4.0, 1.0, {'a subprocess': 3.0})]
    """
    count: dict[str, int] = defaultdict(int)
    wall: dict[str, float] = defaultdict(float)
    processor: dict[str, float] = defaultdict(float)
    waits: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for node, spent in tests.items():
        group = name(node)
        count[group] += 1
        wall[group] += spent["wall_s"]
        processor[group] += spent["processor_s"]
        for what, seconds in spent["waits"].items():
            waits[group][what] += seconds
    slowest = sorted(wall, key=lambda group: -wall[group])
    return [(group, count[group], wall[group], processor[group], dict(waits[group])) for group in slowest]


def waited(waits: dict[str, float]) -> str:
    """The longest waits of a second and more, three at most.

    >>> waited({"a lab that starts": 14.46, "the clock": 0.2, "a subprocess": 30})
    'a subprocess 30, a lab that starts 14'
    """
    longest = sorted(((seconds, what) for what, seconds in waits.items() if seconds >= 1), reverse=True)
    return ", ".join(f"{what} {seconds:.0f}" for seconds, what in longest[:3])


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=40, help="lines of the tables of files and tests")
    parser.add_argument("--tests", action="store_true", help="also the slowest tests")
    options = parser.parse_args()
    if not KEPT.exists():
        raise SystemExit(f"{KEPT} is not there: `make test` writes it")
    tests = json.loads(KEPT.read_text("utf-8"))
    total = sum(spent["wall_s"] for spent in tests.values())
    print(f"{len(tests)} tests, {total:,.0f} s of wall summed over the workers")
    tables = [
        ("folder", lambda node: node.split("::")[0].rpartition("/")[0]),
        ("file", lambda node: node.split("::")[0]),
    ]
    for what, name in [*tables, *([("test", str)] if options.tests else [])]:
        print(f"\n{'wall s':>8}{'cpu s':>8}{'tests':>7}  {what + ', and what it waits in (s)'}")
        for group, count, wall, processor, waits in grouped(tests, name)[: options.most]:
            print(f"{wall:8.1f}{processor:8.1f}{count:7}  {group:<50} {waited(waits)}".rstrip())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
