"""Losses in the middle of the WAL are no losses of the WAL."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.test_proving_findings import A, U, ledger
from walproof.model.attempt import Attempts
from walproof.proving.order import lost_out_of_order
from walproof.proving.reading import MemberReading

STEP = 1 << 20


def in_wal(size: int) -> Attempts:
    """Acknowledged attempts, a megabyte of WAL apart."""
    tries = ledger(*((n, A, float(n)) for n in range(1, size + 1)))
    return replace(tries, lsn=np.arange(1, size + 1, dtype=np.uint64) * np.uint64(STEP))


def reading(*present: bool) -> MemberReading:
    return MemberReading("n2", np.array(present, dtype=bool))


@given(st.integers(0, 20), st.integers(0, 20))
def test_a_loss_of_the_end_is_in_order(kept: int, lost: int) -> None:
    held = reading(*[True] * kept, *[False] * lost)
    assert not lost_out_of_order(in_wal(kept + lost), held).any()


def test_a_loss_from_the_middle_is_out_of_order() -> None:
    assert lost_out_of_order(in_wal(4), reading(True, False, True, False)).tolist() == [False, True, False, False]


def test_another_timeline_or_server_has_an_order_of_its_own() -> None:
    tries = in_wal(4)
    held = reading(True, False, True, True)
    assert lost_out_of_order(tries, held).any()
    assert not lost_out_of_order(replace(tries, timeline=np.array([1, 1, 2, 2], np.int32)), held).any()
    assert not lost_out_of_order(replace(tries, server=np.array([0, 0, 1, 1], np.int16)), held).any()


def test_positions_that_are_close_or_not_known_prove_nothing() -> None:
    tries = in_wal(3)
    held = reading(True, False, True)
    assert not lost_out_of_order(replace(tries, lsn=np.array([1, 2, 3], np.uint64)), held).any()
    assert not lost_out_of_order(replace(tries, lsn=np.zeros(3, np.uint64)), held).any()
    assert not lost_out_of_order(replace(tries, outcome=np.array([A, U, A], np.int8)), held).any()
