"""One grammar: a list given in several options adds up, a list has no empty entry, one quorum is written one way."""

import json
import shlex

import click
import pytest

from tests.fixtures.command_line import Run, commands, one_sentence, walproof
from tests.fixtures.tiers import each
from walproof.cli import main
from walproof.targets.external import consent

__all__ = ["walproof"]

PLAN = "price --target sim --dry-run --json"
DRILLS = "prove --target sim --dry-run --json"


@each([
    (PLAN, "--levels off,on", "--levels off --levels on"),
    (PLAN, "--clients 1,4,16", "--clients 1 --clients 4,16"),
    (PLAN, "--rtt 0,3ms", "--rtt 0 --rtt 3ms"),
    (PLAN, "--quorum any1,all", "--quorum any1 --quorum all"),
    (PLAN, "--quorum any1,first1", "--quorum 'ANY 1' --quorum 'FIRST 1' --quorum any1"),
    (PLAN, "--cpu 1,2", "--cpu 1 --cpu 2 --cpu 1"),
    (PLAN, "--fsync on,off", "--fsync on --fsync off"),
    (PLAN, "--mix on=10,local=90", "--mix on=10 --mix local=90"),
    (PLAN, "--load 0.5,0.8", "--load 0.5 --load 80%"),
    (PLAN, "--workload insert@3,select-only@1", "--workload insert@3 --workload select-only@1"),
    (PLAN, "--quorum any1 --mode strict,degrading", "--quorum any1 --mode strict --mode degrading"),
    (DRILLS, "--fault kill,freeze", "--fault kill --fault freeze"),
    (DRILLS, "--levels off,local,on", "--levels off --levels local,on"),
])  # fmt: skip
def test_lists_in_several_options_add_up(line: str, once: str, apart: str, walproof: Run) -> None:
    together, separate = (walproof(*shlex.split(f"{line} {words}")) for words in (once, apart))
    assert together[0] == separate[0] == 0, (together, separate)
    assert json.loads(together[1]) == json.loads(separate[1])


def test_every_consent_that_is_given_counts(walproof: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[frozenset[str]] = []
    real = consent.read

    def kept(text: str | None) -> frozenset[str]:
        given.append(real(text))
        return given[-1]

    monkeypatch.setattr(consent, "read", kept)
    for line in ("prove --dry-run", "price --dry-run --budget 5s", "watch --json"):
        walproof(*shlex.split(f"{line} --target sim --allow kill --allow load,config"))
    assert given
    assert set(given) == {frozenset({"kill", "load", "config"})}


@each([p for p, one in commands(main.walproof) if not isinstance(one, click.Group)], whole=True)
def test_every_option_whose_value_is_a_list_may_be_repeated(path: tuple[str, ...]) -> None:
    command = dict(commands(main.walproof))[path]
    for option in command.params:
        if isinstance(option, click.Option) and ("," in (option.metavar or "") and "|" not in str(option.metavar)):
            assert option.multiple, f"{path}: {option.opts}"


@each([
    "price --target sim --levels off,,on",
    "price --target sim --quorum any1, --dry-run",
    "prove --target sim --fault ,kill",
    "prove --target sim --levels ,",
    "prove --pitfall P1,,P2",
    "watch --target sim --levels on,",
    "price --target sim --allow load,",
    "revert --ended-on host,",
    "target cnpg --print-rbac --for price,,prove",
])  # fmt: skip
def test_an_empty_entry_is_refused_by_every_list(line: str, walproof: Run) -> None:
    one_sentence(walproof(*shlex.split(line)), "is empty or has an empty entry")


@pytest.mark.parametrize("quorum", ["1", "2", "any", "any0", "2any", "some1"])
@pytest.mark.parametrize("line", ["lab up --quorum", "price --target sim --quorum", "watch --target sim --quorum"])
def test_one_quorum_is_refused_by_every_verb_alike(walproof: Run, line: str, quorum: str) -> None:
    one_sentence(walproof(*line.split(), quorum), f"{quorum!r} is not a quorum")
