"""--require: met, not met or undecided by the interval, as exit code and as one line each."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fixtures.command_line import ended
from tests.fixtures.priced_fake import FakePriced, throughput
from tests.fixtures.tiers import each
from tests.unit.test_cli_price import run, target  # noqa: F401
from walproof.errors import UsageError
from walproof.model.estimate import Caveat, Estimate
from walproof.model.guarantee import Level
from walproof.model.sample import Arm, Scenario
from walproof.pricing.estimates import NO_LATENCY, ArmPrice, PriceTable
from walproof.pricing.results_and_gate import Answer, exit_code, parse_requirements, required

Run = Callable[..., tuple[int, str, str]]


def table(ratio: Estimate, *caveats: Caveat) -> PriceTable:
    price = ArmPrice(Scenario(), Arm(Level.ON, 16), 8, ratio, ratio, NO_LATENCY, caveats)
    return PriceTable(Level.LOCAL, (price,))


@each([
    ("on>=0.9@16", Estimate(0.93, 0.91, 0.95), Answer.MET, 0),
    ("on>=0.9@16", Estimate(0.93, 0.89, 0.97), Answer.UNDECIDED, 4),
    ("on>=0.9@16", Estimate(0.85, 0.82, 0.88), Answer.NOT_MET, 1),
    ("on>=90%", Estimate(0.93, 0.91, 0.95), Answer.MET, 0),
    ("on>=0.9@16", Estimate(0.99, float("nan"), float("nan")), Answer.UNDECIDED, 4),
    ("on>=0.9@4", Estimate(0.93, 0.91, 0.95), Answer.UNDECIDED, 4),
])  # fmt: skip
def test_the_interval_decides_never_the_value(asked: str, ratio: Estimate, answer: Answer, code: int) -> None:
    found = required(parse_requirements(asked), table(ratio))
    assert [one.answer for one in found] == [answer]
    assert exit_code(found) == code
    assert found[0].text.startswith(f"{answer}: on>=0.9")


def test_a_level_not_in_effect_meets_nothing() -> None:
    found = required(parse_requirements("on>=0.9"), table(Estimate(1.0, 0.99, 1.01), Caveat.NOT_IN_EFFECT))
    assert (found[0].answer, found[0].why) == (Answer.UNDECIDED, "guarantee not in effect")


def test_one_not_met_outweighs_one_undecided() -> None:
    found = required(parse_requirements("on>=0.9,on>=0.95"), table(Estimate(0.88, 0.8, 0.92)))
    assert (exit_code(found), exit_code(found[:1]), exit_code(())) == (1, 4, 0)


@each(["on", "on>0.9", "on>=x", "on>=0.9@", "on>=0.9@0", "never>=0.9", ""])
def test_what_is_no_requirement_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_requirements(text)


def test_price_and_report_end_with_the_same_answer(run: Run, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    truth = throughput(Arm(Level.ON, 4)) / throughput(Arm(Level.LOCAL, 4))
    below, above = f"on>={truth - 0.1:.3f}@4", f"on>={truth + 0.1:.3f}@4"
    code, out, _ = run("--levels", "on", "--clients", "4", "--require", below, "--record", "rec")
    assert code == 0
    assert f"met: {below}, 4 clients, default settings: ratio 0." in out
    for asked, wanted in ((below, 0), (above, 1), (f"{below},{above}", 1), ("on>=0.5@9", 4)):
        assert ended(capsys, ["report", "rec", "--require", asked])[0] == wanted
    code, out, _ = ended(capsys, ["report", "rec", "--require", above, "--json"])
    assert [one["answer"] for one in json.loads(out)["requirements"]] == ["not met"]
    code, _, err = ended(capsys, ["report", "rec", "rec", "--require", above])
    assert (code, "one record" in err) == (2, True)


def test_a_requirement_of_what_is_not_measured_is_refused(run: Run) -> None:  # noqa: F811
    code, _, err = run("--levels", "on", "--clients", "4", "--require", "on>=0.9@16", "--record", "rec")
    assert (code, Path("rec").exists()) == (2, False)
    assert "names nothing that this run measures" in err
    assert run("--clients", "4", "--require", "on>=0.9", "--break-even")[0] == 2


def test_a_resumed_run_takes_new_requirements(run: Run, target: FakePriced) -> None:  # noqa: F811
    target.interrupt_after = 12
    run("--levels", "on", "--clients", "4", "--record", "rec")
    target.interrupt_after = None
    assert run("--resume", "rec", "--require", "on>=0.99@4")[0] == 1
