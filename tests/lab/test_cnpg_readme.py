"""The README's CloudNativePG commands on the stand-in over real PostgreSQL: in order, killed at seeded moments, twice.

The whole twenty moments: `python -m benchmarks.cnpg_killed`.
"""

import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.fixtures.kubernetes.readme_commands import (
    COMMANDS,
    FROZEN,
    Done,
    killed,
    kubernetes_for_readme,
    more,
    run,
    state,
)
from tests.fixtures.kubernetes.target import ADDRESS, Kubernetes
from walproof.machine.clock import RealClock
from walproof.model.waiting import Wait, wait_for

pytestmark = [pytest.mark.lab, pytest.mark.nightly]
SEED = 30
A_POD = re.compile("pg-walproof-0-")
A_DATABASE = re.compile("walproof_[0-9a-f]{32}")


@dataclass(frozen=True)
class Readme:
    """The stand-in after the seven commands, each to its end: what each said, and what it left."""

    kubernetes: Kubernetes
    done: dict[str, Done]
    left: dict[str, dict[str, list[str]]]


@pytest.fixture(scope="module")
def readme(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Readme]:
    with kubernetes_for_readme(tmp_path_factory.mktemp("readme"), 10.0) as kubernetes:
        before, done, left = state(kubernetes), {}, {}
        for name, words in COMMANDS.items():
            done[name] = run(kubernetes, words)
            left[name] = more(before, state(kubernetes))
        yield Readme(kubernetes, done, left)


def test_the_seven_commands_in_order(readme: Readme) -> None:
    codes = {name: done.code for name, done in readme.done.items()}
    # The doctor warns of the level that apply then sets.
    assert codes == dict.fromkeys(COMMANDS, 0) | {"doctor": 1}, readme.done
    choice = json.loads(readme.done["advise"].out)["choices"][0]
    assert choice["level"] == "on" and any("held" in sentence for sentence in choice["proven"])
    said = readme.done["apply"].out
    assert "synchronous_commit" in said and "in effect on" in said and "undone on" in readme.done["undo"].out, said
    applied = readme.left.pop("apply")
    assert applied.keys() == {"spec"} and 'postgresql.parameters.synchronous_commit = "on"' in applied["spec"]
    assert not any(readme.left.values()), readme.left


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("price", COMMANDS["price"]),
        ("prove", FROZEN["prove"]),
        ("apply", COMMANDS["apply"]),
        ("undo", COMMANDS["undo"]),
    ],
    ids=["price", "prove", "apply", "undo"],
)
def test_revert_alone_removes_what_a_killed_command_left_and_says_so(readme: Readme, name: str, words: str) -> None:
    after_s = random.Random(f"{SEED} {name}").uniform(0.3, 0.9) * readme.done[name].seconds
    moment = killed(readme.kubernetes, words.replace("--record ", f"--record killed-{name}-"), after_s)
    assert not moment.wrong, f"{moment}"


def test_a_second_run_is_refused_before_anything_and_names_the_first(readme: Readme) -> None:
    kubernetes, before = readme.kubernetes, state(readme.kubernetes)
    price = COMMANDS["price"].replace("--record price", "--record first").replace("--budget 6s", "--budget 60s")
    first = kubernetes.walproof(*price.split())
    try:
        wait_for(
            Wait.PITFALL_SHOWN,
            lambda: any(map(A_DATABASE.match, left := kubernetes.left())) and any(map(A_POD.match, left)),
            RealClock(),
            times=4,
        )
        there = state(kubernetes)
        beside = run(kubernetes, price.replace("--record first", "--record beside"))
        assert beside.code == 3 and "another run of walproof is at work on this cluster: its " in beside.err, beside
        assert "walproof/run=" in beside.err and " ago on " in beside.err and "wait for its end" in beside.err
        assert state(kubernetes) == there
    finally:
        first.kill()
        first.communicate(timeout=30)
    after = run(kubernetes, price.replace("--record first", "--record after"))
    assert after.code == 3 and "another run of walproof was killed on this cluster: its " in after.err, after
    assert "walproof revert removes what it left" in after.err
    reverted = run(kubernetes, f"revert --target {ADDRESS} --json", folder="elsewhere")
    removed = {one["kind"] for of in json.loads(reverted.out)["reverted"] for one in of["removed"]}
    assert removed == {"pod", "job", "secret", "database", "role"}
    assert more(before, state(kubernetes)) == {}
