"""What another's advice calls its classes and its doubts adds no line to a recipe, no statement and no command."""

import json
from dataclasses import replace
from pathlib import Path

from tests.fixtures.command_line import Run as Walproof
from tests.fixtures.priced_records import price_record, prove_record
from tests.fixtures.records import recorded
from tests.fixtures.tiers import each
from walproof.advising.advise import advise, choose_environment
from walproof.advising.evidence import evidence_of
from walproof.advising.recipes import recipes
from walproof.model.advice import ClassChoice, Requirements
from walproof.model.guarantee import Level


@each(["x\nDROP TABLE t;", "x\rDROP TABLE t;", "x\u2028DROP TABLE t;", 'x" IN DATABASE y; '])
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


def test_the_command_to_type_next_is_made_here(walproof: Walproof, tmp_path: Path) -> None:
    record = str(recorded(tmp_path / "p", "price", price_record()))
    advice = json.loads(walproof("advise", record, "--target", "sim", "--rpo", "0", "--json")[1])
    advice["prove"] = "touch pasted; walproof prove --target sim"
    advice["cluster"]["target"] = "/of/a/stranger.toml"
    (tmp_path / "advice.json").write_text(json.dumps(advice))
    code, _, err = walproof("apply", "advice.json", "--target", "sim")
    assert code == 4, err
    assert "hint: walproof prove --target sim --levels " in err
