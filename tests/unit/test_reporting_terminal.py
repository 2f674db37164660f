"""Tables, sentences and JSON from a record's events alone."""

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from tests.fixtures.records import HOSTILE, SETTINGS, full_record, price_events, prove_events
from tests.fixtures.tiers import each
from walproof.model.drill import Drill, Verdict
from walproof.model.event import DrillDone, Event
from walproof.model.guarantee import Level
from walproof.proving.campaign_results import back_after
from walproof.records.reader import Record
from walproof.reporting.conclusion import conclusion, loss_sentence, sentences
from walproof.reporting.html_and_markdown import markdown
from walproof.reporting.outline import Section, Table, columns, row
from walproof.reporting.record_outline import composed, results
from walproof.reporting.terminal import tables


def drawn(events: Sequence[Event], width: int = 240) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    for part in tables(results(events)):
        console.print(part)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def drills_of(events: tuple[Event, ...]) -> list[DrillDone]:
    return [e for e in events if isinstance(e, DrillDone)]


def test_a_price_table_has_a_row_per_level_and_clients_for_each_scenario() -> None:
    text = drawn(price_events(SETTINGS[:2], (1, 16)))
    prices = text.split("tail, stalls", 1)[0]
    assert sum(line.strip().startswith("remote_apply") and line.count("(") == 2 for line in prices.splitlines()) == 4
    assert "rtt 2 ms" in text
    assert "commit latency breakdown" in text


def test_drills_are_listed_one_by_one_and_summed_up() -> None:
    events = prove_events(12)
    text = drawn(events)
    marked = text.count("✘ broken") + text.count("✘ expected loss")
    assert marked == sum(e.drill.verdict in (Verdict.BROKEN, Verdict.EXPECTED_LOSS) for e in drills_of(events))
    assert text.count("✘ expected loss") == sum(e.drill.verdict is Verdict.EXPECTED_LOSS for e in drills_of(events)) > 0
    assert "results per fault and level" in text
    assert "positive control" in text


def test_markup_from_the_target_stays_text() -> None:
    events = [
        replace(e, drill=replace(e.drill, why="[red]x[/] [link=http://evil]y[/link]"))
        for e in drills_of(prove_events())
    ]
    assert "[red]x[/]" in drawn(events)


def test_claims_are_compared_with_what_was_measured() -> None:
    text = drawn(full_record())
    assert "not reproduced" in text
    assert HOSTILE in text


def test_a_record_of_nothing_has_no_tables_and_says_so() -> None:
    assert results(()) == ()
    assert conclusion(()) == "Nothing was measured and no fault was injected."


def test_a_conclusion_has_one_to_three_sentences() -> None:
    for events in ((), price_events(), prove_events(), full_record()):
        assert 1 <= len(sentences(events)) <= 3


def test_the_loss_sentence_counts_losses_per_level_and_bounds_the_clean_ones() -> None:
    drill = drills_of(prove_events(4))[0].drill
    clean = replace(drill, level=Level.ON, verdict=Verdict.HELD, findings=replace(drill.findings, lost=0))
    broken = replace(drill, level=Level.OFF, verdict=Verdict.BROKEN, findings=replace(drill.findings, lost=620))
    assert "violating its guarantee" in loss_sentence([replace(broken, promised=True), clean])
    expected = replace(broken, verdict=Verdict.EXPECTED_LOSS)
    assert "expected loss: it does not guarantee them" in loss_sentence([expected, clean])
    sentence = loss_sentence([expected, broken, clean, clean])
    assert "guarantee them" not in sentence
    assert sentence.startswith("Off lost 1,240 acknowledged commits in 2 of 2 drills")
    assert "on lost none in 2 drills (P(loss), 95 % upper bound: 78 %)" in sentence


def test_the_loss_sentence_names_the_faults_and_the_least_sure_kind() -> None:
    drill = drills_of(prove_events(4))[0].drill
    clean = replace(drill, level=Level.ON, verdict=Verdict.HELD, findings=replace(drill.findings, lost=0), fault="kill")
    other = replace(clean, fault="freeze")
    sentence = loss_sentence([clean, clean, other])
    assert sentence == "On lost none in 3 drills (P(loss), 95 % upper bound of the least sure of 2 kinds: 95 %)."
    lost = replace(other, verdict=Verdict.BROKEN, findings=replace(drill.findings, lost=3))
    assert "On lost 3 acknowledged commits in 1 of 3 drills under freeze" in loss_sentence([clean, clean, lost])


def test_undecided_and_skipped_drills_are_counted_apart_and_give_no_times() -> None:
    drill = drills_of(prove_events(4))[0].drill
    held = replace(drill, level=Level.ON, verdict=Verdict.HELD, findings=replace(drill.findings, lost=0), rto_s=2.0)
    open_one = replace(held, verdict=Verdict.UNDECIDED, rto_s=90.0)
    skipped = replace(held, verdict=Verdict.SKIPPED, rto_s=None)
    assert loss_sentence([held, open_one, skipped, skipped]).endswith(
        "upper bound: 95 %, 1 undecided); 2 were skipped."
    )
    assert loss_sentence([open_one, skipped]) == "The drill could not be decided; 1 was skipped."
    assert loss_sentence([skipped]) == "The drill was skipped."
    assert loss_sentence([skipped, skipped]) == "Every drill was skipped."
    assert back_after([held, open_one]) == "2.0 s (1 drill)"


def test_undecided_drills_stand_with_the_result_they_are_not_in() -> None:
    drill = drills_of(prove_events(4))[0].drill
    held = replace(drill, level=Level.ON, verdict=Verdict.HELD, findings=replace(drill.findings, lost=0))
    open_one = replace(held, verdict=Verdict.UNDECIDED)
    lost = replace(held, level=Level.OFF, verdict=Verdict.EXPECTED_LOSS, findings=replace(drill.findings, lost=7))
    open_off, broken = replace(open_one, level=Level.OFF), replace(held, verdict=Verdict.BROKEN)
    assert loss_sentence([lost, open_off, held]).startswith("Off lost 7 acknowledged commits in 1 of 1 drill, 1 undec")
    assert loss_sentence([open_off, open_off, held]).startswith("Off could not be decided in 2 drills; on lost none")
    assert loss_sentence([broken, open_one]) == "On was broken without losing a commit, 1 undecided."
    tables_of = drawn([DrillDone(0.0, one) for one in (held, open_one, lost, open_off)])
    assert "95 %, 1 undecided" in tables_of and "100 %, 1 undecided" in tables_of
    assert "95 %, 1 undecided" in markdown(composed(recorded([held, open_one])))


def recorded(drills: Sequence[Drill]) -> Record:
    """A record of these drills alone."""
    return Record(tuple(DrillDone(0.0, one) for one in drills), (), Path("record"))


def test_drills_that_decide_nothing_are_reported_as_such() -> None:
    drill = replace(drills_of(prove_events(4))[0].drill, verdict=Verdict.UNDECIDED)
    assert loss_sentence([drill]) == "The drill could not be decided."
    assert loss_sentence([drill, drill]) == "None of the 2 drills could be decided."


def test_an_outage_that_was_not_seen_is_left_out() -> None:
    drill = replace(drills_of(prove_events(4))[0].drill, rto_s=None)
    assert back_after([drill]) == ""


@each([80, 100, 240])
def test_tables_fit_the_terminal_without_cutting_a_word(width: int) -> None:
    text = drawn(full_record(), width=width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "…" not in text
    for word in ("remote_apply", "recovered", "positive control", "transaction", "remote flush", "reproduced"):
        assert word in text


def test_caveats_are_spelt_out_even_in_a_narrow_terminal() -> None:
    text = drawn(price_events(blocks=3), width=80)
    assert "caveats: a " in text
    assert "too few blocks" in text


def test_tables_in_a_pipe_never_fold() -> None:
    long = "a reason " * 60
    events = [replace(e, drill=replace(e.drill, why=f"{long}{e.drill.number}")) for e in drills_of(prove_events())]
    lines = drawn(events, width=10_000).splitlines()
    assert sum(long in line for line in lines) == len(events)
    prices = drawn(price_events(blocks=3), width=10_000).splitlines()
    heads = next(line for line in prices if line.split()[:1] == ["level"])
    assert heads.split()[:3] == ["level", "clients", "tps"]
    assert "ratio to local (95 % CI)" in heads
    assert "caveats" in heads
    assert sum(line.split()[:1] == ["remote_apply"] for line in prices) >= 2
    assert not any("…" in line for line in (*lines, *prices))


NARROW = {"drop": ["extra"], "letter": ["note"]}


# rows: whole, narrow, its letters, upright, list
@each([
    (NARROW, 60, "on     a long note about it             0      1"),
    (NARROW, 45, "on     a           0"),
    (NARROW, 45, "  note: a a long note about it; b a note"),
    ({}, 42, "commits lost                     0      12"),
    ({}, 30, "      commits lost: 12"),
])  # fmt: skip
def test_a_table_takes_the_first_form_that_fits(ways: dict[str, list[str]], width: int, line: str) -> None:
    heads = columns("level", "note", ">commits lost", ">extra", **ways)
    rows = (row("on", "a long note about it", "0", "1"), row("local", "a note", "12", "2"))
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(*tables([Section("s", "s", "", (Table("t", "title", heads, rows),))]))
    assert isinstance(console.file, io.StringIO)
    assert line in [shown.rstrip() for shown in console.file.getvalue().splitlines()], console.file.getvalue()
