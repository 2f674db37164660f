"""When packets are due. Time is a number here; nothing is sent."""

import socket
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.tiers import each
from walproof.links import emulator
from walproof.links.emulator import QUEUE_S, Channel
from walproof.links.settings import LinkSetting


def lane(**words: float | bool) -> Channel:
    return Channel(LinkSetting(**words), Random(7))  # type: ignore[arg-type]


def test_a_delay_is_added_to_the_time_a_packet_came() -> None:
    assert lane(delay_s=0.005).due(100.0, 1500) == pytest.approx(100.005)


def test_nothing_passes_a_cut() -> None:
    cut = lane(delay_s=0.005, cut=True)
    assert cut.due(1.0, 100) is None
    assert (cut.offered, cut.refused, cut.lost) == (1, 1, 0)


@each([0.001, 0.01, 0.5])
def test_loss_is_as_asked_over_many_packets(share: float) -> None:
    lossy, count = lane(loss=share), 200_000
    lost = sum(lossy.due(float(i), 100) is None for i in range(count))
    deviation = (share * (1 - share) * count) ** 0.5
    assert abs(lost - share * count) < 5 * deviation
    assert lossy.lost == lost


def test_loss_of_everything_loses_everything() -> None:
    assert all(lane(loss=1.0).due(float(i), 100) is None for i in range(100))


def test_a_rate_spaces_packets_by_their_size_and_lets_an_idle_line_start_afresh() -> None:
    slow = lane(rate_bps=8e6)  # a byte each microsecond
    due = [slow.due(at, size) for at, size in ((0.0, 1000), (0.0, 500), (5.0, 1000))]
    assert due == pytest.approx([0.001, 0.0015, 5.001])


def test_a_full_queue_drops_the_newest_and_later_takes_packets_again() -> None:
    slow = lane(rate_bps=8e6)
    answers = [slow.due(0.0, 1000) for _ in range(200)]
    passed = [a for a in answers if a is not None]
    assert len(passed) == pytest.approx(QUEUE_S / 0.001, abs=2)
    assert slow.refused == 200 - len(passed)
    assert slow.due(1.0, 1000) is not None


def test_the_rate_holds_over_a_long_stream() -> None:
    slow, due = lane(rate_bps=1e8, delay_s=0.005), None
    for i in range(20_000):
        due = slow.due(i * 1500 * 8 / 1e8, 1500) or due
    assert due == pytest.approx(20_000 * 1500 * 8 / 1e8 + 0.005, rel=0.01)


@given(
    st.lists(st.floats(0, 0.05), min_size=2, max_size=60),
    st.floats(0, 0.02),
    st.floats(0, 0.02),
    st.none() | st.floats(1e5, 1e9),
)
def test_no_packet_overtakes_or_arrives_before_it_came(
    gaps: list[float], delay: float, jitter: float, rate: float | None
) -> None:
    one, now, last = Channel(LinkSetting(delay, jitter, 0.0, rate), Random(1)), 0.0, 0.0
    for gap in gaps:
        now += gap
        due = one.due(now, 1000)
        if due is not None:
            assert due >= now
            assert due >= last
            last = due


def test_jitter_spreads_around_the_delay() -> None:
    shaken = lane(delay_s=0.010, jitter_s=0.004)
    waits = [(shaken.due(float(i), 100) or 0.0) - i for i in range(5000)]
    assert min(waits) == pytest.approx(0.006, abs=1e-4)
    assert max(waits) == pytest.approx(0.014, abs=1e-4)
    assert sum(waits) / len(waits) == pytest.approx(0.010, abs=3e-4)


def test_the_same_seed_loses_the_same_packets() -> None:
    one, other = (Channel(LinkSetting(loss=0.3), Random(5)) for _ in range(2))
    assert [one.due(float(i), 1) for i in range(500)] == [other.due(float(i), 1) for i in range(500)]


def test_a_flooded_direction_fills_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulator, "MOST_BYTES", 5000)
    near, device = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with near, device:
        device.setblocking(False)
        source, destination = socket.inet_aton("10.77.1.1"), socket.inet_aton("10.77.1.2")
        links, slow = emulator.LinkEmulator.__new__(emulator.LinkEmulator), lane(delay_s=3600.0)
        links.channels, links.ends = {source + destination: slow}, {destination: device.fileno()}
        links.in_flight, links.count, links.lead, links.rest = [], 0, 0.0, 0.0
        for _ in range(20):
            near.send(bytes(emulator.KEY.start) + source + destination + bytes(980))
            links._receive(device.fileno(), 0.0)
        assert 5000 <= sum(len(entry[3]) for entry in links.in_flight) == slow.held < 6100
        assert slow.refused == 20 - len(links.in_flight)
        links.in_flight = [(0.0, *entry[1:]) for entry in links.in_flight]
        links._send_due()
        assert slow.held == 0
