"""Open loop: the same rate on both sides, latency from the intended start, and overload known from queueing."""

import heapq
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.fixtures.priced_fake import FakePriced
from tests.fixtures.tiers import each
from tests.unit.test_pricing import priced, question_of
from walproof.load.pgbench_log import summary
from walproof.model.estimate import Caveat
from walproof.model.event import SampleDone
from walproof.model.guarantee import Level
from walproof.model.sample import Arm, Sample, SampleResult, Scenario, Window
from walproof.pricing.estimates import caveats_of, price_table
from walproof.pricing.run import offered
from walproof.pricing.sampling import Bench
from walproof.reporting.outline import Table
from walproof.reporting.price_section import price_sections

CAPACITY = 2000.0
"""Two servers of 1 ms on average."""


def queue_log(path: Path, rate: float, seconds: float, seed: int, clients: int = 8) -> None:
    """pgbench -R's log of a queue with two servers: Poisson schedule, each client takes the next place in it."""
    rng = np.random.default_rng(seed)
    free_clients, free_servers = [0.0] * clients, [0.0, 0.0]
    lines, due, number = [], 0.0, 0
    while True:
        due += rng.exponential(1 / rate)
        started = max(due, heapq.heappop(free_clients))
        ended = max(started, heapq.heappop(free_servers)) + rng.exponential(0.001)
        if ended > seconds:
            break
        heapq.heappush(free_clients, ended)
        heapq.heappush(free_servers, ended)
        number += 1
        latency, lag = round(1e6 * (ended - due)), round(1e6 * (started - due))
        lines.append(f"0 {number} {latency} 0 {1000 + int(ended)} {int(1e6 * (ended % 1))} {lag}\n")
    path.write_text("".join(lines))


def samples_at(tmp_path: Path, rate: float, run: int, blocks: int = 8) -> list[SampleResult]:
    arm, results = Arm(Level.ON, 8, rate=rate), []
    for block in range(1, blocks + 1):
        file = tmp_path / "log"
        queue_log(file, rate, 1.2, 1000 * run + block)
        found = summary([file], 1000.1, 1001.2, paced=True)
        result = SampleResult(
            Sample(block, 0, arm, Scenario()), 0.0, 1.1, found.transactions, 0, found.credit, found.mean_ms
        )
        window = Window(standby_names="ANY 1 (a)")
        lag = {"lag_ms": 1000 * found.lag.mean_s, "backlog": found.lag.rise}
        results.append(replace(result, histogram=found.histogram, window=window, **lag))  # type: ignore[arg-type]
    return results


@each([(0.5, False), (0.9, False), (1.1, True), (1.5, True)])
def test_overload_is_not_a_queue_that_holds(share: float, overloaded: bool, tmp_path: Path) -> None:
    found = [
        Caveat.OVERLOAD in caveats_of(samples_at(tmp_path, share * CAPACITY, run), np.array([])) for run in range(4)
    ]
    assert found == [overloaded] * 4


def test_waiting_for_ones_turn_is_latency_but_not_credit(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("0 1 1500000 0 1002 0 1000000\n")
    found = summary([tmp_path / "log"], 1000.0, 1003.0, paced=True)
    assert (found.mean_ms, found.credit, found.lag.mean_s) == (1500.0, 1.0, 1.0)
    assert summary([tmp_path / "log"], 1001.5, 1003.0, paced=True).credit == 1.0


def opened(target: FakePriced) -> list[Arm]:
    asked = replace(question_of({"levels": "off,on", "clients": "1,4", "load": "0.5", "budget": "60s"}), sample_s=1.0)
    events, _ = priced(target, asked)
    return sorted(
        {e.result.sample.arm for e in events if isinstance(e, SampleDone) and e.result.sample.arm.label == "load 0.5"},
        key=lambda a: (a.clients, a.level.strength),
    )


def test_both_sides_of_a_ratio_are_offered_the_same_rate_that_of_the_slowest() -> None:
    arms = opened(FakePriced(noise=0.01))
    assert [(a.clients, a.level) for a in arms] == [
        (n, lv) for n in (1, 4) for lv in (Level.OFF, Level.LOCAL, Level.ON)
    ]
    rates = {n: {a.rate for a in arms if a.clients == n} for n in (1, 4)}
    assert [len(found) for found in rates.values()] == [1, 1]
    assert rates[1].pop() == pytest.approx(1000 / 1.5 / 2, rel=0.03)


def test_a_resumed_run_offers_every_arm_what_was_offered_before() -> None:
    asked = replace(question_of({"levels": "on", "clients": "4", "load": "0.5", "budget": "60s"}), sample_s=1.0)
    events, _ = priced(FakePriced(noise=0.01), asked)
    first = next(i for i, e in enumerate(events) if isinstance(e, SampleDone) and e.result.sample.arm.rate)
    bench = Bench(FakePriced(noise=0.3), lambda _: None, 1, events[: first + 1])
    again = offered(bench, asked, 0.5)
    assert {a.level for a in again} == {Level.LOCAL, Level.ON}
    assert {a.rate for a in again} == {events[first].result.sample.arm.rate}  # type: ignore[union-attr]


def test_no_latency_is_shown_of_an_arm_that_did_not_carry_its_rate(tmp_path: Path) -> None:
    held, over = ([SampleDone(0.0, r) for r in samples_at(tmp_path, share * CAPACITY, 1)] for share in (0.5, 1.3))
    prices = sorted(price_table([*held, *over]).arms, key=lambda p: p.arm.rate or 0.0)
    assert [Caveat.OVERLOAD in p.caveats for p in prices] == [False, True]
    assert prices[0].latency.p99.value > 1
    assert np.isnan([prices[1].latency.p99.value, prices[1].latency.p50.value, prices[1].latency.max_ms]).all()
    sections = price_sections([*held, *over], price_table([*held, *over]))
    (offered,) = (b for s in sections for b in s.blocks if isinstance(b, Table) and b.key == "offered")
    assert [[cell.text for cell in cells].count("overload") for cells in offered.rows] == [0, 1]
