"""Pitfalls that once showed themselves must go on doing so; the long ones only with WALPROOF_ALL_PITFALLS=1."""

import os
from collections.abc import Iterator

import pytest

from tests.fixtures.labs import a_lab
from walproof.lab.blueprint import Blueprint, Disk
from walproof.studies.pitfalls.catalogue import CATALOGUE, Pitfall
from walproof.studies.pitfalls.run import STOCK_TIMEOUTS, play

pytestmark = pytest.mark.lab
EVERY = bool(os.environ.get("WALPROOF_ALL_PITFALLS"))
QUICK = ("P1", "P8", "P11", "P12", "P14")
WANTED = sorted((p for p in CATALOGUE if EVERY or p.number in QUICK), key=lambda p: p.ruins)


@pytest.fixture(scope="module")
def stage() -> Iterator[Blueprint]:
    """One lab for all of them; each leaves it whole."""
    disk = Disk(kind="image") if EVERY else Disk()
    with a_lab(parameters=dict(STOCK_TIMEOUTS), disk=disk) as blueprint:
        yield blueprint


@pytest.mark.parametrize("pitfall", WANTED, ids=[p.number for p in WANTED])
def test_the_pitfall_shows_itself(stage: Blueprint, pitfall: Pitfall) -> None:
    told = play(stage, pitfall)
    assert told.found is not None, told.why
    assert told.found.reproduced, told.found.evidence
