"""A soak: one or two levels for the time given, every second kept, drawn and written out."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.fixtures.command_line import ended
from tests.fixtures.priced_fake import FakePriced, Ticking
from tests.fixtures.tiers import each
from tests.unit.test_cli_price import run  # noqa: F401
from tests.unit.test_load_pgbench import log
from walproof.errors import TargetError
from walproof.load.local_runner import Used, used
from walproof.load.pgbench_log import Mark, Summary, series, summary
from walproof.load.sampler import Sampler
from walproof.model.event import SampleDone
from walproof.model.guarantee import Level
from walproof.model.sample import Arm, Sample, SampleCut, SampleResult, Scenario, Series
from walproof.records.reader import read
from walproof.reporting.html_and_markdown import page
from walproof.reporting.record_outline import composed
from walproof.reporting.soak_section import soak_sections
from walproof.targets.sql import price
from walproof.targets.sql.price import SqlPricer

Run = Callable[..., tuple[int, str, str]]
SOAK = ("--soak", "120s", "--levels", "on", "--clients", "4", "--record", "rec")


class Soaked(FakePriced):
    """Its samples hold a series: at 30 s after the start one second stands still and a checkpoint begins."""

    def run_sample(self, planned: Sample, seconds: float, seed: int) -> SampleResult:
        from dataclasses import replace

        found = super().run_sample(planned, seconds, seed)
        if not planned.series:
            return found
        n, since = int(seconds), found.started_at
        still = [30 <= since + k - 1_800_000_000 < 31 for k in range(n)]
        made = Series(
            started_at=since,
            transactions=tuple(0 if s else round(found.tps) for s in still),
            p50_ms=tuple(None if s else 2.0 for s in still),
            p99_ms=tuple(None if s else 9.0 for s in still),
            max_ms=tuple(None if s else 1000.0 if k and still[k - 1] else 20.0 for k, s in enumerate(still)),
            stalled_s=tuple(1.0 if s else 0.0 for s in still),
            wal_bytes=(500_000,) * n,
            checkpoint=tuple(since + k - 1_800_000_000 >= 30 for k in range(n)),
        )
        return replace(found, series=made)


@pytest.fixture
def target() -> FakePriced:
    return Soaked()


def test_every_second_is_counted_by_what_ended_in_it(tmp_path: Path) -> None:
    second = 10**6
    ends = [*range(100, 1000, 100), 2500, 2600]  # ms; nothing ends between 0.9 and 2.5 s
    rows = [(0, n, str(1000 * n), 0, 1000 * second + 1000 * at) for n, at in enumerate(ends, 1)]
    (tmp_path / "log.1").write_bytes(log(rows[:5]))
    (tmp_path / "log.2").write_bytes(log(rows[5:]))
    marks = [Mark(1000.0, 0, False), Mark(1001.0, 700, False), Mark(1002.0, 1000, True), Mark(1003.0, None, False)]
    files = [tmp_path / "log.1", tmp_path / "log.2"]
    found = series(files, (1000.0, 1003.4), [(1000.91, 1002.5)], marks)
    assert found.transactions == (9, 0, 2)
    assert found.p50_ms == (5.0, None, 10.5)
    assert found.max_ms == (9.0, None, 11.0)
    assert found.stalled_s == (0.09, 1.0, 0.5)
    assert found.wal_bytes == (700, 300, None)
    assert found.checkpoint == (True, True, False)


def test_two_levels_alternate_for_the_whole_time_and_every_second_is_in_the_record(run: Run) -> None:  # noqa: F811
    code, out, _ = run(*SOAK, "--json")
    assert code == 0
    found = json.loads(out)
    assert found["stopped_by"] == "done"
    assert {one["level"] for one in found["soak"]} == {"local", "on"}
    assert 110 <= sum(len(one["transactions"]) for one in found["soak"]) <= 121
    stretches = [
        e.result.sample for e in read(Path("rec")).events if isinstance(e, SampleDone) and e.result.sample.block
    ]
    assert {s.series for s in stretches} == {True}
    pairs = [{stretches[i].arm.level, stretches[i + 1].arm.level} for i in range(0, len(stretches) - 1, 2)]
    assert all(len(pair) == 2 for pair in pairs)
    assert found["arms"][1]["ratio"]["high"] < 1
    reported = json.loads(ended_json("rec"))
    assert reported["soak"] == found["soak"]


def ended_json(record: str) -> str:
    from walproof.reporting.console_output import json_text
    from walproof.reporting.json_csv_hdrhistogram import record_json

    found = read(Path(record))
    return json_text(record_json(found.events, record, ()))


def test_the_picture_shows_checkpoint_and_stall_at_their_time(run: Run, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    run(*SOAK)
    record = read(Path("rec"))
    (section,) = soak_sections(record.events)
    (figure,) = section.blocks
    chart = figure.charts[0]  # type: ignore[union-attr]
    stalls = chart.marked  # type: ignore[union-attr]
    assert len(stalls) == 1
    assert 24 <= stalls[0][0] <= 31
    assert stalls[0][1] - stalls[0][0] == 1
    assert chart.shaded[0][0] == pytest.approx(stalls[0][0])  # type: ignore[union-attr]
    drawn = page(composed(record))
    assert drawn.count('<rect class="stall"') == 1
    assert "s thick t-on" in drawn
    code, out, _ = ended(capsys, ["report", "rec"])
    assert (code, "the soak" in out) == (0, True)


def test_a_long_soak_is_drawn_in_steps_that_keep_the_worst_second(run: Run) -> None:  # noqa: F811
    run("--soak", "1h", "--levels", "on", "--clients", "4", "--record", "rec")
    (section,) = soak_sections(read(Path("rec")).events)
    chart = section.blocks[0].charts[0]  # type: ignore[union-attr]
    points = [p for one in chart.panels[1].lines if one.weight == "faint" for r in one.runs for p in r]  # type: ignore[union-attr]
    assert len(points) <= 800
    assert max(value for _, value in points) == 1000.0


def test_ctrl_c_keeps_what_was_measured_and_resume_goes_on(run: Run, target: FakePriced) -> None:  # noqa: F811
    target.interrupt_after = 5
    assert run(*SOAK)[0] == 130
    kept = sum(isinstance(e, SampleDone) for e in read(Path("rec")).events)
    assert kept == 5
    target.interrupt_after = None
    target.clock.pause(86_400)
    code, out, _ = run("--resume", "rec", "--json")
    assert (code, target.left) == (0, 2)
    (section,) = soak_sections(read(Path("rec")).events)
    assert section.blocks[0].charts[0].slots[-1].end < 300  # type: ignore[union-attr]
    assert 105 <= sum(len(one["transactions"]) for one in json.loads(out)["soak"]) <= 125


def test_the_stretch_that_ctrl_c_cuts_short_is_kept_too(run: Run, target: FakePriced) -> None:  # noqa: F811
    def cut(planned: Sample) -> bool:
        if planned.block == 3:
            result = Soaked(clock=target.clock).run_sample(planned, 4.0, 1)
            raise SampleCut(result)
        return False

    target.fails = cut
    assert run(*SOAK)[0] == 130
    done = [e.result for e in read(Path("rec")).events if isinstance(e, SampleDone)]
    assert [len(r.series.transactions) for r in done] == [0, 6, 6, 6, 6, 4]


@pytest.mark.parametrize("more", [
    ("--levels", "off,local,on"),
    ("--budget", "1min"),
    ("--rtt", "0,3ms"),
    ("--clients", "1,4"),
    ("--tune",),
    ("--driver", "sh -c true"),
])  # fmt: skip
def test_what_a_soak_cannot_hold_is_refused(run: Run, more: tuple[str, ...]) -> None:  # noqa: F811
    assert run(*SOAK, *more)[0] == 2
    assert not Path("rec").exists()


def test_a_soak_outlives_a_failover_of_ten_seconds(run: Run, target: FakePriced) -> None:  # noqa: F811
    target.fails = lambda planned: 1_800_000_040 <= target.clock.now() < 1_800_000_050
    code, out, _ = run(*SOAK, "--json")
    assert (code, json.loads(out)["stopped_by"]) == (0, "done")
    began = [one["started_at"] - 1_800_000_000 for one in json.loads(out)["soak"]]
    assert any(at < 40 for at in began)
    assert not any(40 <= at < 50 for at in began)
    assert max(began) > 100


def test_the_simulated_cluster_can_be_soaked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = str(tmp_path / "rec")
    words = [
        "price",
        "--target",
        "sim",
        "--soak",
        "60s",
        "--levels",
        "on",
        "--clients",
        "4",
        "--record",
        where,
        "--json",
    ]
    code, out, _ = ended(capsys, words)
    assert code == 0
    assert 50 <= sum(len(one["transactions"]) for one in json.loads(out)["soak"]) <= 61
    assert page(composed(read(Path(where)))).count("WAL, MB/s: not known") == 1


def test_one_level_alone_is_soaked(run: Run) -> None:  # noqa: F811
    code, out, _ = run("--soak", "60s", "--levels", "on", "--baseline", "on", "--clients", "4", "--json")
    assert code == 0
    assert {one["level"] for one in json.loads(out)["soak"]} == {"on"}


class Interrupted(Ticking):
    """A clock in whose third second Ctrl-C comes."""

    def pause(self, seconds: float) -> None:
        super().pause(seconds)
        if self.at > 1_800_000_003.05:
            raise KeyboardInterrupt


class Quiet(Sampler):
    """A sampler whose members never answer."""

    def _query(self, member: str, statement: bytes) -> list[tuple[str | None, ...]]:
        return []


class Steady:
    """A load that ended a transaction of 1 ms every 2 ms."""

    pids: tuple[int, ...] = ()
    ended = False
    aborted = retries = 0
    self_timed_s: float | None = None

    def used(self) -> Used:
        """Of no process."""
        return used(())

    def __init__(self, log: Path) -> None:
        self.log = log

    def await_connected(self, clients: int, timeout_s: float) -> None:
        """They are."""

    def end(self, grace_s: float, unblock: Callable[[], None]) -> None:
        second = 10**6
        rows = [(0, n, "1000", 0, 1_800_000_000 * second + 2000 * n) for n in range(1, 1600)]
        self.log.write_bytes(log(rows))

    def summary(self, since: float, until: float) -> tuple[Summary, float]:
        return summary([self.log], since, until), since

    def series(self, overall: Summary, within: tuple[float, float], marks: list[Mark]) -> Series:
        return series([self.log], within, overall.stalls(*within), marks)


@each([True, False])
def test_a_sample_that_keeps_its_series_is_summed_up_when_ctrl_c_comes(kept: bool, tmp_path: Path) -> None:
    target = FakePriced(clock=Interrupted())
    pricer = SqlPricer(target)
    pricer._sampler = lambda view: Quiet({}, target.clock)  # type: ignore[method-assign]
    planned = Sample(1, 0, Arm(Level.ON, 1), Scenario(), series=kept)
    with pytest.raises(KeyboardInterrupt) as raised:
        pricer._measure(Steady(tmp_path / "log"), planned, 30.0, target.observe())  # type: ignore[arg-type]
    assert isinstance(raised.value, SampleCut) is kept
    if isinstance(raised.value, SampleCut):
        found = raised.value.result
        assert found.seconds == pytest.approx(3.1, abs=0.06)
        assert found.tps == pytest.approx(500, rel=0.02)
        assert found.series.transactions == (499, 500, 500)


class CutOff(Steady):
    """A load whose clients all ended, as a failover ends them."""

    def __init__(self, log: Path, clock: Ticking) -> None:
        super().__init__(log)
        self.clock = clock

    @property
    def ended(self) -> bool:  # type: ignore[override]
        return self.clock.now() > 1_800_000_002

    def error(self) -> TargetError:
        return TargetError("client 0 aborted: the server closed the connection")


@each([True, False])
def test_a_sample_cut_off_by_a_failover_is_no_price_but_a_stretch_of_a_soak(kept: bool, tmp_path: Path) -> None:
    target = FakePriced()
    clock = Ticking()
    target.clock = clock
    pricer = SqlPricer(target)
    pricer._sampler = lambda view: Quiet({}, target.clock)  # type: ignore[method-assign]
    planned = Sample(1, 0, Arm(Level.ON, 1), Scenario(), series=kept)
    load = CutOff(tmp_path / "log", clock)
    if kept:
        assert pricer._measure(load, planned, 30.0, target.observe()).tps > 0  # type: ignore[arg-type]
        return
    with pytest.raises(TargetError, match="client 0 aborted"):
        pricer._measure(load, planned, 30.0, target.observe())  # type: ignore[arg-type]


def test_room_is_asked_for_before_the_first_sample_of_so_many_clients_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A burst of the application's sessions at the beginning of any sample ended the run as if it were misused."""
    asked = list[int]()
    monkeypatch.setattr(price, "need_room", lambda _, clients: asked.append(clients))
    pricer = SqlPricer(cast(Any, SimpleNamespace(endpoint=lambda _: None)))
    for clients in (4, 4, 8, 4, 8):
        pricer._need_room(cast(Any, SimpleNamespace(route="direct", clients=clients)))
    assert asked == [4, 8]
