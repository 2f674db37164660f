"""Stalls in a log, background work and the wait for standbys between samples; without a server."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from tests.fixtures.priced_fake import Ticking
from walproof.load.pgbench_log import Columns, Summary, _plus
from walproof.load.sampler import Polled, Sampler
from walproof.model.ports import Clock
from walproof.model.topology import Endpoint


def summary_of(ends_ms: Sequence[int], latency_ms: float = 1.0) -> Summary:
    ends = np.array(ends_ms, dtype=np.int64) * 1000
    latencies = np.full(len(ends), round(latency_ms * 1000), dtype=np.int64)
    none = np.zeros(len(ends), dtype=np.int64)
    piece = Columns(np.arange(1, len(ends) + 1), latencies, none, ends, none, 0)
    return _plus(Summary(), piece, (0.0, 10.0), 1)


def test_a_time_in_which_nothing_ends_is_a_stall() -> None:
    busy = [*range(0, 3000, 5), *range(3400, 10_000, 5)]
    assert summary_of(busy).stalled_s(0.0, 10.0) == pytest.approx(0.4, abs=0.02)


def test_a_stall_at_the_end_counts_too() -> None:
    assert summary_of(range(0, 8000, 5)).stalled_s(0.0, 10.0) == pytest.approx(2.0, abs=0.02)


def test_gaps_of_slow_or_rare_transactions_are_no_stalls() -> None:
    assert summary_of(range(0, 10_000, 150), latency_ms=150).stalled_s(0.0, 10.0) == 0
    assert summary_of(range(0, 10_000, 400)).stalled_s(0.0, 10.0) == 0


def test_background_work_of_the_server_is_no_wait_of_the_load() -> None:
    class Answering(Sampler):
        def _query(self, member: str, statement: bytes) -> list[tuple[str | None, ...]]:
            return [
                ("checkpointer", "1", "0"),
                ("cpu", "2", "1"),
                ("autovacuum worker", "3", "0"),
                ("walwriter", "1", "0"),
            ]

    polled = Polled()
    for _ in range(3):
        Answering({}, Ticking()).poll("n1", polled)
    assert (polled.waits, polled.writing) == ({"cpu": 6}, 3)
    assert polled.background == {"checkpointer": 3, "autovacuum worker": 3, "walwriter": 3}


class Replaying(Sampler):
    """A leader at 0/64 and standbys that answer in turn where they are."""

    def __init__(self, positions: dict[str, list[str | None]], clock: Clock) -> None:
        super().__init__({name: Endpoint((("h", 1),)) for name in ("n1", *positions)}, clock)
        self.positions = positions

    def _query(self, member: str, statement: bytes) -> list[tuple[str | None, ...]]:
        if member == "n1":
            return [("100",)]
        places = self.positions[member]
        return [(places.pop(0) if len(places) > 1 else places[0],)]


def test_a_sample_waits_until_every_standby_has_replayed() -> None:
    clock = Ticking()
    positions: dict[str, list[str | None]] = {"n2": ["10", "50", "100"], "n3": ["100"], "n4": [None]}
    assert Replaying(positions, clock).settle("n1", 1.0) == pytest.approx(0.01, abs=0.002)


def test_a_standby_that_stays_behind_is_waited_for_no_longer_than_allowed() -> None:
    clock = Ticking()
    assert Replaying({"n2": ["99"]}, clock).settle("n1", 1.0) == math.inf
    assert clock.now() < Ticking().now() + 1.1


def test_where_the_leader_does_not_answer_nothing_is_waited_for() -> None:
    class Silent(Sampler):
        def _query(self, member: str, statement: bytes) -> list[tuple[str | None, ...]]:
            return []

    assert Silent({}, Ticking()).settle("n1", 1.0) is None
