"""The record: what is written comes back, and whatever happens to the file it is read as far as it goes."""

import json
import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fixtures.records import full_record, price_events
from tests.fixtures.tiers import each
from walproof.errors import MachineError, UsageError
from walproof.model.drill import Verdict
from walproof.model.event import Ended, Event, LoadSeen, Note, SampleDone, ScenarioLeftOut, SearchStep, Started
from walproof.model.guarantee import Level
from walproof.model.load import LoadFigures
from walproof.model.observed_waits import SessionSums, StandbySeen, WaitsSeen
from walproof.model.salvage import SalvageJudged
from walproof.model.sample import Scenario
from walproof.records import layout
from walproof.records.codec import KINDS, decode, encode
from walproof.records.reader import Tail, read
from walproof.records.writer import Writer


def written(directory: Path, events: tuple[Event, ...]) -> Path:
    with Writer(directory, "price") as emit:
        for event in events:
            emit(event)
    return directory


WAITS = WaitsSeen(
    1.0, 0.5, 9, "n1", Level.ON, "ANY 1 (n2)", (SessionSums("db", "app", "web", "7", 9, 8, 7, 0.5, 3, 2, 1),),
    (StandbySeen("n2", "streaming", (0.5, None, 2.0), (0, 1, 2)),), 90, 80, 1,
    blockers={"web": 2}, overrides=(("app", "", Level.LOCAL),),
)  # fmt: skip


def test_every_kind_of_event_comes_back_equal() -> None:
    load = LoadSeen(1.0, 3, "own.sql@3", 4, LoadFigures(812.5, 7.25, 0.0, failed=2, reconnects=1))
    salvage = SalvageJudged(1.0, 3, Verdict.BROKEN, ("n1",), 3, 1, 1, 1, 2, ("3/120", "4/7"), "n2: it was rewound")
    left_out = ScenarioLeftOut(1.0, Scenario(cores=4.0), "no node takes it")
    events = (*full_record(), left_out, load, salvage, WAITS)
    assert {e.kind for e in events} == set(KINDS)
    for event in events:
        assert decode(encode(event)) == (event, "")


@each([{"-5": 3}, {"9": 0}, {"9": 1, "8": -1}, {"9": 10**400}, {str(10**9): 3}])
def test_a_histogram_that_cannot_have_been_counted_is_left_out(counted: dict[str, int]) -> None:
    sampled = json.loads(encode(next(e for e in full_record() if isinstance(e, SampleDone))))
    for odd in ({"histogram": counted}, {"per_level": {"on": counted}}):
        event, why = decode(json.dumps(sampled | {"result": sampled["result"] | odd}))
        assert event is None
        assert why.startswith("unknown value of sample-done.result")


@each([math.inf, -math.inf, 1e-308, 0.1 + 0.2])
def test_a_number_comes_back_exactly(number: float) -> None:
    event = SearchStep(1.0, "s", {}, number, 0.0, 1.0, "c")
    assert decode(encode(event)) == (event, "")


def test_nan_comes_back_and_is_valid_json() -> None:
    line = encode(SearchStep(1.0, "s", {}, math.nan, 0.0, 1.0, "c"))
    json.loads(line, parse_constant=lambda c: pytest.fail(f"{c} is not JSON"))
    event, _ = decode(line)
    assert isinstance(event, SearchStep)
    assert math.isnan(event.value)


def test_a_record_names_its_format_version_and_verb(tmp_path: Path) -> None:
    header = json.loads((written(tmp_path / "r", price_events()) / "record.json").read_text())
    assert header["format"] == layout.FORMAT
    assert header["verb"] == "price"


def test_a_written_record_is_read_whole(tmp_path: Path) -> None:
    events = full_record()
    record = read(written(tmp_path / "r", events))
    assert record.events == events
    assert record.notices == ()
    assert record.complete


def test_each_event_is_on_disk_before_the_next(tmp_path: Path) -> None:
    with Writer(tmp_path / "r", "price") as emit:
        for count in range(1, 4):
            emit(Note(float(count), "x"))
            assert len(read(tmp_path / "r").events) == count


def test_a_record_being_written_is_shown_with_a_notice(tmp_path: Path) -> None:
    with Writer(tmp_path / "r", "price") as emit:
        emit(Note(1.0, "x"))
        record = read(tmp_path / "r")
    assert "still being written" in record.notices[0]
    assert not record.complete


def test_a_torn_last_line_costs_only_itself(tmp_path: Path) -> None:
    path = written(tmp_path / "r", price_events()) / "events.jsonl"
    data = path.read_bytes()
    path.write_bytes(data[:-20])
    record = read(tmp_path / "r")
    assert record.events == price_events()[:-1]
    assert any("torn" in n for n in record.notices)


def test_any_cut_leaves_a_prefix(tmp_path: Path) -> None:
    events = price_events()[:6]
    path = written(tmp_path / "r", events) / "events.jsonl"
    data = path.read_bytes()
    for cut in range(0, len(data), 97):
        path.write_bytes(data[:cut])
        got = read(tmp_path / "r").events
        assert got == events[: len(got)]
        assert len(got) >= data[:cut].count(b"\n")


def test_damage_in_the_middle_is_skipped_and_named(tmp_path: Path) -> None:
    path = written(tmp_path / "r", price_events()) / "events.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = b"\x00\xff\xfe garbage \n"
    path.write_bytes(b"".join(lines))
    record = read(tmp_path / "r")
    assert len(record.events) == len(lines) - 1
    assert record.notices == ("line 3 was skipped: not JSON.",)


def test_what_a_later_walproof_adds_is_skipped_with_a_notice(tmp_path: Path) -> None:
    path = written(tmp_path / "r", (Note(1.0, "x"),))
    with (path / "events.jsonl").open("a") as file:
        file.write('{"kind":"teleported","at":2.0}\n')
        file.write('{"kind":"note","at":3.0,"text":"y","colour":"blue"}\n')
        file.write('{"kind":"ended","at":4.0,"stopped_by":"done"}\n')
    record = read(path)
    assert [e.kind for e in record.events] == ["note", "ended", "note", "ended"]
    assert any("teleported" in n for n in record.notices)
    assert any("colour" in n for n in record.notices)


@pytest.mark.parametrize("format_", [0, 2, 99])
@pytest.mark.parametrize("reading", [read, Tail], ids=["whole", "as it grows"])
def test_a_record_of_another_format_is_refused(tmp_path: Path, reading: Callable[[Path], object], format_: int) -> None:
    path = written(tmp_path / "r", (Note(1.0, "x"),))
    header = json.loads((path / "record.json").read_text())
    (path / "record.json").write_text(json.dumps({**header, "format": format_, "walproof": "9.9"}))
    with pytest.raises(UsageError, match=f"format {format_}, and this walproof reads format 1") as refused:
        reading(path)
    assert "walproof '9.9'" in refused.value.hint


def test_unknown_fields_deep_inside_are_noticed() -> None:
    raw = json.loads(encode(next(e for e in full_record() if e.kind == "sample-done")))
    raw["result"]["sample"]["arm"]["mood"] = "good"
    event, notice = decode(json.dumps(raw))
    assert event is not None
    assert "mood" in notice


def test_an_unknown_value_skips_the_line_only() -> None:
    raw = json.loads(encode(next(e for e in full_record() if e.kind == "drill-done")))
    raw["drill"]["level"] = "remote_everything"
    event, notice = decode(json.dumps(raw))
    assert event is None
    assert "level" in notice


@each(["absent", "empty", "file"])
def test_what_is_not_a_record_is_a_usage_error(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("hello")
    with pytest.raises(UsageError, match="not a record"):
        read(tmp_path / name)


def test_a_damaged_header_does_not_hide_the_events(tmp_path: Path) -> None:
    path = written(tmp_path / "r", price_events())
    (path / "record.json").write_text("{")
    record = read(path)
    assert record.events == price_events()
    assert "damaged" in record.notices[0]


def test_a_second_record_does_not_overwrite_the_first(tmp_path: Path) -> None:
    written(tmp_path / "r", (Note(1.0, "x"),))
    with pytest.raises(UsageError, match="already holds"):
        Writer(tmp_path / "r", "price")


@each([(b'{"kind":"note","at":2.', 1), (b'{"kind":"note","at":2.0,"text":"y"}', 2)])
def test_resume_goes_on_after_a_crash(tail: bytes, kept: int, tmp_path: Path) -> None:
    path = written(tmp_path / "r", (Note(1.0, "x"),)) / "events.jsonl"
    first = path.read_bytes().splitlines(keepends=True)[0]
    path.write_bytes(first + tail)
    with Writer(tmp_path / "r", "price", resume=True) as emit:
        emit(Note(9.0, "again"))
    record = read(tmp_path / "r")
    assert len(record.events) == kept + 2
    assert record.notices == ()


def test_leaving_after_ctrl_c_says_interrupted(tmp_path: Path) -> None:
    def interrupted(emit: Writer) -> None:
        with emit:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted(Writer(tmp_path / "r", "price"))
    last = read(tmp_path / "r").events[-1]
    assert isinstance(last, Ended)
    assert last.stopped_by == "interrupted"


def test_an_end_that_was_written_is_not_written_twice(tmp_path: Path) -> None:
    record = read(written(tmp_path / "r", (Ended(1.0, "budget"),)))
    assert len(record.events) == 1


def test_no_place_for_the_record_is_a_machine_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError, match="cannot write the record"):
        Writer(tmp_path / "file" / "r", "price")


def test_a_full_disk_is_a_machine_error(tmp_path: Path) -> None:
    emit = Writer(tmp_path / "r", "price")
    with open("/dev/full", "wb") as full:
        os.dup2(full.fileno(), emit._file)
    with pytest.raises(MachineError, match="No space left"):
        emit(Note(1.0, "x"))


def test_kept_files_stay_inside_the_record(tmp_path: Path) -> None:
    with Writer(tmp_path / "r", "prove") as emit:
        path = emit.keep("../../etc/passwd", "log \udce4")
    assert path.parent == tmp_path / "r" / "files"
    assert read(tmp_path / "r").kept() == (path,)


def test_default_records_have_names_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Writer(None, "price") as one, Writer(None, "price") as two:
        assert one.directory != two.directory
        assert one.directory.parent == Path("records")


def test_a_tail_gives_each_event_once_even_when_lines_come_in_pieces(tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text("{}")
    tail = Tail(tmp_path)
    line = encode(Started(1.0, "price", {}, "walproof price", 1, "0")).encode() + b"\n"
    assert tail.more() == ()
    with (tmp_path / "events.jsonl").open("ab", buffering=0) as file:
        file.write(line[:10])
        assert tail.more() == ()
        file.write(line[10:] + line)
        assert len(tail.more()) == 2
        assert tail.more() == ()
