"""Files of a stranger's record that are larger than their bytes on disk: one sentence, and no memory is filled."""

import json
import os
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fixtures.tiers import each
from walproof.errors import Error, MachineError, UsageError
from walproof.proving import history
from walproof.proving.history import MAGIC, decode
from walproof.records.journal import Journal
from walproof.records.layout import EVENTS, FORMAT, HEADER, read_header
from walproof.records.reader import Tail, read

GIB = 1 << 30


def sparse(path: Path, size: int) -> None:
    """A file of that size without a block on disk."""
    with path.open("ab") as file:
        file.truncate(size)


def record(folder: Path, size: int) -> Path:
    (folder / HEADER).write_text(json.dumps({"format": FORMAT, "walproof": "0", "verb": "price", "created": "x"}))
    sparse(folder / EVENTS, size)
    return folder


# rows: whole, as it grows
@each([read, lambda folder: Tail(folder).more()])
def test_events_of_more_than_a_gibibyte_are_not_read(reading: Callable[[Path], object], tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(MachineError, match="it is larger than 1024 MiB"):
            reading(record(tmp_path, GIB + 1))
        assert tracemalloc.get_traced_memory()[1] < 1 << 24
    finally:
        tracemalloc.stop()


def test_a_header_of_more_than_a_mebibyte_is_damaged(tmp_path: Path) -> None:
    record(tmp_path, 0)
    with (tmp_path / HEADER).open("a") as file:
        file.write(" " * (1 << 20))
    assert read_header(tmp_path) == (None, f"{HEADER} is damaged")


def test_a_journal_of_more_than_16_mebibytes_is_refused(tmp_path: Path) -> None:
    sparse(tmp_path / "journal", (16 << 20) + 1)
    with pytest.raises(MachineError, match="it is larger than 16 MiB") as refused:
        Journal(tmp_path / "journal").pending()
    assert isinstance(refused.value, Error)


# rows: pipe, device
@each([os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_put_in_a_journals_place_while_it_is_looked_at_is_not_waited_for(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    make(tmp_path / "journal")
    with pytest.raises(MachineError, match="cannot read the journal"):
        Journal(tmp_path / "journal").pending()


@each([(10_000, 0), (50_000_001, 1 << 20)])
def test_a_history_claims_no_more_attempts_than_a_drill_makes(
    attempts: int, padding: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Claimed:
        def __init__(self) -> None:
            self.attempts, self.origin = attempts, 0.0

    monkeypatch.setattr(history, "_ADAPTER", type("Any", (), {"validate_python": lambda self, _: Claimed()})())
    parts = (zlib.compress(b"{}"), b"x" * padding, b"")
    body = b"".join(parts)
    sizes = history._SIZES.pack(*map(len, parts), zlib.crc32(body))
    with pytest.raises(UsageError, match="more attempts than it can hold"):
        decode(MAGIC + sizes + body)
