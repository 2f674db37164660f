"""What another's advice calls its classes and its doubts adds no line to a recipe, and no statement."""

from dataclasses import replace

import pytest

from tests.fixtures.priced_records import price_record, prove_record
from walproof.advising.advise import advise, choose_environment
from walproof.advising.evidence import evidence_of
from walproof.advising.recipes import recipes
from walproof.model.advice import ClassChoice, Requirements
from walproof.model.guarantee import Level


@pytest.mark.parametrize("evil", ["x\nDROP TABLE t;", "x\rDROP TABLE t;", "x\u2028DROP TABLE t;", 'x" IN DATABASE y; '])
def test_a_class_and_a_doubt_are_one_word_or_one_comment(evil: str) -> None:
    evidence = evidence_of([("a", price_record()), ("b", prove_record(Level.ON))])
    required = Requirements(rpo_s=0.0)
    advice = advise(evidence, required, choose_environment(evidence, None, None))
    one = ClassChoice(evil, required, Level.ON, evil)
    choice = replace(advice.choices[0], classes=(one,), undecided=evil)
    for recipe in recipes(choice, advice.cluster).values():
        assert not [line for line in recipe.text.splitlines() if line.startswith("DROP")], recipe.name
        if recipe.name == "application":
            (role,) = [line for line in recipe.text.split("\n") if line.startswith("-- or for a role")]
            assert f'ROLE "{evil.replace(chr(34), chr(34) * 2)}"' in role or 'ROLE U&"x' in role
