"""The README's CloudNativePG commands killed at seeded moments on the stand-in; then `walproof revert` alone.

`python -m benchmarks.cnpg_killed [--moments 20] [--seed 1] [--speed 10]`: the seven commands in order, each to its end;
then kill -9 at a random moment of each in turn, and `revert` from another folder, without a target. Prints moment by
moment what there was and what revert says; exit 1 where anything is left, or revert does not say what it removed.
"""

import itertools
import random
import tempfile
from pathlib import Path

from benchmarks.command import command
from tests.fixtures.kubernetes.readme_commands import COMMANDS, FROZEN, Moment, killed, kubernetes_for_readme, run
from tests.fixtures.kubernetes.target import Kubernetes

CHANGING = ("price", "prove", "apply", "undo")
AGAIN = 5
LATEST = 0.97
"""Of the seconds that the command took when it was not killed."""


def each_moment(kubernetes: Kubernetes, seed: int, count: int, took_s: dict[str, float]) -> list[Moment]:
    """Printed as they come: each command, then those that change something; every other drill freezes and fences."""
    draw, done = random.Random(seed), list[Moment]()
    names = itertools.chain(COMMANDS, itertools.cycle(CHANGING))
    for number, name in enumerate(itertools.islice(names, count), 1):
        words = (FROZEN if number % 2 else COMMANDS).get(name, COMMANDS[name])
        for again in range(AGAIN):
            after_s = draw.uniform(0.1, LATEST) * took_s[name]
            moment = killed(kubernetes, words.replace("--record ", f"--record {number}-{again}-"), after_s)
            if not moment.early:
                break
            # The machine is less busy now: a moment after the command's end is none.
            took_s[name] = moment.seconds
        done.append(moment)
        print(f"{number:3} seed {seed}: walproof {words}")
        print(f"    killed after {after_s:.2f} s{', had ended' if moment.early else ''}: {moment.there or 'nothing'}")
        print("".join(f"    revert: {line}\n" for line in moment.said.splitlines()), end="")
        print(f"    {moment.wrong or 'nothing left'}", flush=True)
    return done


def main(*, moments: int = 20, seed: int = 1, speed: float = 10.0) -> int:
    """Exit code."""
    with tempfile.TemporaryDirectory(prefix="walproof-cnpg-killed-") as folder:
        Path(folder).chmod(0o711)
        with kubernetes_for_readme(Path(folder), speed) as kubernetes:
            took_s = {}
            for name, words in COMMANDS.items():
                took_s[name] = (done := run(kubernetes, words)).seconds
                print(f"{name}: exit {done.code} after {done.seconds:.1f} s", flush=True)
            killed_at = each_moment(kubernetes, seed, moments, took_s)
    wrong, early = [one for one in killed_at if one.wrong], sum(one.early for one in killed_at)
    made = sum(bool(one.there) for one in killed_at)
    print(
        f"{len(killed_at)} moments, seed {seed}: {len(wrong)} with something left or unsaid; "
        f"in {made} there was something to revert; {early} had ended before the kill"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    command(main)
