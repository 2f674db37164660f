"""Losses in the middle of the WAL are no losses of the WAL."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.unit.test_proving_findings import A, U, ledger
from walproof.model.load import Attempts
from walproof.proving.lost_commits import MemberReading, lost_out_of_order, lost_rows


def one_after_another(size: int) -> Attempts:
    """Acknowledged attempts, each started when the one before had ended."""
    return ledger(*((n, A, float(n)) for n in range(1, size + 1)))


def out_of_order(tries: Attempts, leader: MemberReading) -> NDArray[np.bool_]:
    return lost_out_of_order(tries, leader, lost_rows(tries, [leader]))


def reading(*present: bool) -> MemberReading:
    return MemberReading("n2", np.array(present, dtype=bool))


@given(st.integers(0, 20), st.integers(0, 20))
def test_a_loss_of_the_end_is_in_order(kept: int, lost: int) -> None:
    held = reading(*[True] * kept, *[False] * lost)
    assert not out_of_order(one_after_another(kept + lost), held).any()


def test_a_loss_from_the_middle_is_out_of_order() -> None:
    found = out_of_order(one_after_another(4), reading(True, False, True, False))
    assert found.tolist() == [False, True, False, False]


def test_another_timeline_or_server_has_an_order_of_its_own() -> None:
    tries = one_after_another(4)
    held = reading(True, False, True, True)
    assert out_of_order(tries, held).any()
    assert not out_of_order(replace(tries, timeline=np.array([1, 1, 2, 2], np.int32)), held).any()
    assert not out_of_order(replace(tries, server=np.array([0, 0, 1, 1], np.int16)), held).any()


def test_attempts_under_way_at_the_same_time_may_stand_in_either_order() -> None:
    # A backend that pauses between its row and its commit lets any amount of WAL of others pass.
    tries, held = one_after_another(3), reading(True, False, True)
    together = replace(tries, started=np.array([0.9, 1.9, 1.95]), lsn=np.array([1, 2, 1 << 24], np.uint64))
    assert not out_of_order(together, held).any()


def test_an_unanswered_attempt_has_no_place_in_the_order() -> None:
    held = reading(True, False, True)
    assert not out_of_order(replace(one_after_another(3), outcome=np.array([A, U, A], np.int8)), held).any()
    assert not out_of_order(replace(one_after_another(3), outcome=np.array([A, A, U], np.int8)), held).any()


def test_what_several_clocks_cannot_tell_apart_is_no_order() -> None:
    tries, held = one_after_another(3), reading(True, False, True)
    gap_s = float(tries.started[2] - tries.ended[1])
    assert out_of_order(replace(tries, clocks_apart_s=gap_s / 2), held).any()
    assert not out_of_order(replace(tries, clocks_apart_s=gap_s * 2), held).any()
