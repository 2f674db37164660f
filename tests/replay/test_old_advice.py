"""Advice files as version 0.1.0 printed them: today's `walproof apply` reads every field under its present name."""

import json
from pathlib import Path
from typing import Any

import pytest

from walproof.advising.advice_file import as_json, chosen, read_advice
from walproof.errors import UsageError
from walproof.model.advice import Requirements
from walproof.model.guarantee import Level

FOLDER = Path(__file__).parent / "advice"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))


def values(tree: Any) -> list[str]:
    """Every value of a JSON tree in order, whatever it is called; null says nothing, and later formats have more."""
    if isinstance(tree, dict):
        tree = list(tree.values())
    if tree is None:
        return []
    return [leaf for one in tree for leaf in values(one)] if isinstance(tree, list) else [str(tree)]


@pytest.mark.parametrize("name", NAMES)
def test_old_advice_is_read_without_losing_a_value(name: str) -> None:
    text = (FOLDER / f"{name}.json").read_text()
    advice = read_advice(text)
    assert values(as_json(advice)) == values(json.loads(text))
    assert read_advice(json.dumps(as_json(advice))) == advice


def test_a_choice_of_an_old_file_is_found_with_its_trade_offs() -> None:
    advice = read_advice((FOLDER / "format-1.json").read_text())
    choice = chosen(advice, 1)
    assert (choice.level, choice.quorum, choice.clients) == (Level.ON, 1, 4)
    assert advice.requirements == Requirements(rpo_s=0.0)
    assert advice.environment.rtt_ms == 0.0
    assert advice.cluster.members == ("n1", "n2", "n3")
    assert "reads on a standby may be stale" in choice.trade_offs
    assert not choice.timeouts.rto_required


def test_classes_of_an_old_file_keep_their_requirements() -> None:
    advice = read_advice((FOLDER / "format-1-classes.json").read_text())
    assert {one.name: one.requirements.rpo_s for one in chosen(advice, 1).classes} == {"payments": 0.0, "logs": 1.0}


def test_refusals_of_an_old_file_name_their_requirement() -> None:
    advice = read_advice((FOLDER / "format-1-refused.json").read_text())
    with pytest.raises(UsageError, match="--rto 30s"):
        chosen(advice, 1)
