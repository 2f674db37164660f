"""Pitfalls that once showed themselves must go on doing so; the long ones only with WALPROOF_ALL_PITFALLS=1."""

import os
from collections.abc import Iterator

import pytest

from tests.fixtures.labs import a_lab
from walproof.lab.blueprint import Blueprint, Disk
from walproof.studies.pitfalls.catalogue import CATALOGUE, DEFAULT_TIMEOUTS, Pitfall, run_pitfall

pytestmark = [pytest.mark.lab, pytest.mark.nightly]
EVERY = bool(os.environ.get("WALPROOF_ALL_PITFALLS"))
QUICK = ("P1", "P8", "P11", "P12", "P14")
WANTED = sorted((p for p in CATALOGUE if EVERY or p.number in QUICK), key=lambda p: p.ruins)


@pytest.fixture(scope="module")
def pitfall_blueprint() -> Iterator[Blueprint]:
    """One lab for all of them; each leaves it healthy."""
    disk = Disk(kind="image") if EVERY else Disk()
    with a_lab(parameters=dict(DEFAULT_TIMEOUTS), disk=disk) as blueprint:
        yield blueprint


@pytest.mark.parametrize("pitfall", WANTED, ids=[p.number for p in WANTED])
def test_the_pitfall_shows_itself(pitfall_blueprint: Blueprint, pitfall: Pitfall) -> None:
    done = run_pitfall(pitfall_blueprint, pitfall)
    assert done.finding is not None, done.why
    assert done.finding.reproduced, done.finding.evidence
