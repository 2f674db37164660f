"""The kept history: few bytes, the same verdict again, and one sentence for damaged files."""

import struct
import tracemalloc
import zlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.attempts import attempts as ledger
from tests.fixtures.tiers import each
from walproof.errors import UsageError
from walproof.model.drill import Victim
from walproof.model.guarantee import Level
from walproof.model.load import Attempts, Outcome, WitnessReport
from walproof.model.topology import ClusterView, LedgerTable, MemberState, MemberView, Role
from walproof.proving.campaign import PlannedDrill
from walproof.proving.faults import fault
from walproof.proving.history import MAGIC, DrillRun, History, decode, encode
from walproof.proving.lost_commits import MemberReading

EPOCH = 1_795_000_000.0


def view(at: float, leader: str = "n1", timeline: int = 1) -> ClusterView:
    roles = {name: Role.LEADER if name == leader else Role.STANDBY for name in ("n1", "n2")}
    members = tuple(MemberView(name, role, "running", timeline) for name, role in roles.items())
    return ClusterView(at, members, leader, "ANY 1 (n2)")


def history(size: int, seed: int, *, writers: int = 4) -> History:
    """A history as a busy cluster leaves it, with every kind of outcome and column value."""
    rng = np.random.default_rng(seed)
    started = EPOCH + np.sort(rng.uniform(0, 10, size))
    outcome = rng.choice(np.array(list(Outcome), np.int8), size, p=[0.1, 0.7, 0.1, 0.1])
    ended = np.where(outcome == Outcome.UNKNOWN, np.nan, started + rng.exponential(0.001, size))
    writer = rng.integers(0, writers, size).astype(np.int32)
    number = np.zeros(size, np.int64)
    for one in range(writers):
        chosen = writer == one
        number[chosen] = np.arange(chosen.sum())
    attempts = Attempts(
        writer=writer,
        number=number,
        started=started,
        ended=ended,
        outcome=outcome,
        level=rng.integers(-1, len(Level), size).astype(np.int8),
        server=rng.integers(-1, 2, size).astype(np.int16),
        timeline=rng.integers(0, 3, size).astype(np.int32),
        lsn=rng.integers(0, 1 << 63, size, dtype=np.uint64),
        names=rng.integers(-1, 2, size).astype(np.int16),
        checksum=rng.integers(0, 1 << 32, size, dtype=np.uint32),
        servers=("n1", "n2"),
        standby_names=("ANY 1 (n2)", ""),
    )
    run = DrillRun(
        ("n1",), view(EPOCH), EPOCH + 3, EPOCH + 7, EPOCH + 11, (view(EPOCH + 4, "n2", 2),),
        (MemberState("n1", EPOCH + 1, answers=True, settings={"fsync": "on"}, table=LedgerTable(), senders=("n2",)),),
        after=view(EPOCH + 10, "n2", 2),
    )  # fmt: skip
    readings = tuple(MemberReading(m, rng.random(size) < 0.9, 1, 2, 3, caught_up=True) for m in ("n2", "n1"))
    witness = WitnessReport({"n2": (3, 1)}, ((0, 1), (1, 2)), 1, (0.5, 1.25), (4, 1), {"n2": 1})
    planned = PlannedDrill(7, fault("kill"), Victim.LEADER, Level.ON, "pgbouncer", writers)
    return History(planned, run, attempts, witness, readings, {"n3 unread": "no answer"})


@given(st.integers(0, 300), st.integers(0, 10_000))
def test_what_is_decoded_is_what_was_encoded_to_the_microsecond(size: int, seed: int) -> None:
    whole = history(size, seed)
    whole = replace(whole, attempts=replace(whole.attempts, clocks_apart_s=size / 1000))
    again = decode(encode(whole))
    assert again.attempts.clocks_apart_s == whole.attempts.clocks_apart_s
    order = np.lexsort((whole.attempts.number, whole.attempts.writer))
    for name in ("writer", "number", "outcome", "level", "server", "timeline", "lsn", "names"):
        assert np.array_equal(getattr(whole.attempts, name)[order], getattr(again.attempts, name)), name
    for name in ("started", "ended"):
        assert np.allclose(getattr(whole.attempts, name)[order], getattr(again.attempts, name), 0, 1e-6, equal_nan=True)
    for before, after in zip(whole.readings, again.readings, strict=True):
        assert np.array_equal(before.present[order], after.present)
    assert again.run == whole.run
    assert (again.planned, again.witness, again.problems) == (whole.planned, whole.witness, whole.problems)
    kept = encode(again)
    assert encode(decode(kept)) == kept


def busy(size: int, writers: int = 16) -> History:
    """Writers that commit one after the other in about half a millisecond each, as on a lab at off."""
    rng = np.random.default_rng(1)
    each = size // writers
    base = history(0, 1)
    duration = rng.gamma(4, 0.0001, (writers, each))
    ended = EPOCH + np.cumsum(duration + rng.exponential(0.00001, (writers, each)), axis=1)
    checksum = rng.integers(0, 1 << 32, each * writers, dtype=np.uint32)
    rank = np.argsort(np.argsort(ended.ravel() + rng.normal(0, 0.0002, each * writers)))
    attempts = ledger(
        each * writers,
        level=Level.OFF,
        writer=np.repeat(np.arange(writers, dtype=np.int32), each),
        number=np.tile(np.arange(each, dtype=np.int64), writers),
        started=(ended - duration).ravel(),
        ended=ended.ravel(),
        lsn=(rank * 304 + (1 << 32)).astype(np.uint64),
        checksum=checksum,
    )
    readings = tuple(MemberReading(m, np.ones(each * writers, bool)) for m in ("n1", "n2", "n3"))
    return replace(base, attempts=attempts, readings=readings)


def test_an_attempt_takes_at_most_six_bytes() -> None:
    whole = busy(200_000)
    assert len(encode(whole)) / len(whole.attempts) <= 6.0


@each([0, 5, 25, 60, 500, -1])
def test_a_flipped_bit_is_noticed(place: int) -> None:
    data = bytearray(encode(history(200, 1)))
    data[place] ^= 4
    with pytest.raises(UsageError, match="damaged"):
        decode(bytes(data))


@each([0, 10, 30, 100, 1000])
def test_a_file_cut_short_is_noticed(size: int) -> None:
    with pytest.raises(UsageError, match="damaged"):
        decode(encode(history(200, 1))[:size])


@each([("outcome", 4), ("outcome", -1), ("level", 99), ("server", 2), ("names", 2)])
def test_a_value_that_no_ledger_writes_is_noticed(column: str, value: int) -> None:
    whole = history(200, 1)
    values = getattr(whole.attempts, column).copy()
    values[17] = value
    wrong = replace(whole, attempts=replace(whole.attempts, **{column: values}))
    with pytest.raises(UsageError, match=f"damaged: a {column} is out of range"):
        decode(encode(wrong))


def with_header(plain: bytes) -> bytes:
    """A file of no attempts whose sizes and checksum are right, with that text as its header."""
    parts = (zlib.compress(plain, 9), b"", b"")
    sizes = struct.pack("<IIII", *(len(part) for part in parts), zlib.crc32(b"".join(parts)))
    return MAGIC + sizes + b"".join(parts)


NOISE = np.random.default_rng(1).bytes(100_000).hex()
"""What does not compress."""


# rows: longer, repeated, values, fields, nested, cut
@each([
    (f'["{NOISE}",' + " " * (64 << 20) + "0]", "longer than any drill's"),
    (" " * (8 << 20), "longer than any drill's"),
    (f'["{NOISE}",' + "[0]," * 500_000 + "0]", "1 field of its header cannot be read"),
    (f'{{"{NOISE}": [' + "[0,0]," * 200_000 + "0]}", "15 fields of its header cannot be read"),
    (f'["{NOISE}"' + "," + "[" * 1_000_000, "levels deep"),
    ("{", "header|property name"),
])  # fmt: skip
def test_a_header_that_no_drill_leaves_is_refused_at_little_cost(plain: str, sentence: str) -> None:
    data = with_header(plain.encode())
    tracemalloc.start()
    try:
        with pytest.raises(UsageError, match=sentence):
            decode(data)
        assert tracemalloc.get_traced_memory()[1] < 150 << 20
    finally:
        tracemalloc.stop()
