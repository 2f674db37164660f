"""Advice ranked by a forecast: availability and P(loss a year) as requirements; what is impossible, refused clearly."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fixtures.command_line import ended
from tests.fixtures.priced_records import price_record, prove_record
from tests.fixtures.records import recorded
from tests.fixtures.tiers import each
from walproof.advising.advise import advise, choose_environment
from walproof.advising.evidence import evidence_of
from walproof.advising.requirements import requirements_of
from walproof.model.advice import Advice, Requirements, YearlyRisk
from walproof.model.estimate import Estimate
from walproof.model.guarantee import Level, QuorumKind


def _year(level: Level, minutes: float, chance: float, *, strict: bool = True, drills: float = 0.05) -> YearlyRisk:
    share = 1 - minutes / (365.25 * 1440)
    kind, k = (QuorumKind.ANY, 1) if level.remote else (None, 0)
    around = Estimate(chance, chance / 2, chance * 2)
    return YearlyRisk(level, kind, k, strict, Estimate(share, share, share), around, Estimate(drills, drills, drills))


YEARS = (
    _year(Level.OFF, 16.0, 0.5),
    _year(Level.LOCAL, 16.0, 0.4),
    *(_year(level, 17.0, 1e-7) for level in Level if level.remote),
    *(_year(level, 15.0, 1e-4, strict=False) for level in Level if level.remote),
)


def _advice(required: Requirements, years: tuple[YearlyRisk, ...] = YEARS) -> Advice:
    found = replace(evidence_of([("r", price_record())]), years=years)
    return advise(found, required, choose_environment(found, None, None))


ENOUGH = 1 - 16.5 / (365.25 * 1440)


def test_a_loss_per_year_chooses_a_level_that_waits_and_says_what_drills_do_not_exclude() -> None:
    made = _advice(Requirements(loss_per_year=1e-6))
    assert made.choices
    assert all(c.level.remote and c.strict for c in made.choices)
    first = made.choices[0]
    assert first.year is not None and first.year.strict
    assert any("do not exclude a loss in 0.05 of years" in text for text in first.assumed)
    partly = _advice(Requirements(loss_per_year=1.5e-7)).choices[0]
    assert any("P(loss) may reach 2e-07" in text for text in partly.assumed), "its interval meets it only partly"
    degrading = _advice(Requirements(availability=ENOUGH, loss_per_year=1e-3))
    assert degrading.choices and not any(c.strict for c in degrading.choices), "only degrading is available enough"


# what is required, the forecasts, its name, a part of the limit, what the nearest begins with
OUT_OF_REACH: list[tuple[Requirements, tuple[YearlyRisk, ...], str, str, str]] = [
    (Requirements(availability=0.999999), YEARS, "--availability 99.9999", "15 minutes without writes", "--avail"),
    (Requirements(loss_per_year=1e-9), YEARS, "--loss-per-year 1e-09", "P(loss) 1e-07 by structure", "--loss-per-year"),
    (Requirements(availability=0.9), (), "", "no forecast", ""),
    # Nothing lost with the leader needs strict, which stops writes more often.
    (Requirements(rpo_s=0.0, availability=ENOUGH), YEARS, "", "", ""),
]


@each(OUT_OF_REACH)
def test_what_no_configuration_reaches_is_refused_with_the_nearest(
    required: Requirements, years: tuple[YearlyRisk, ...], name: str, limit: str, nearest: str
) -> None:
    (refused, *_) = _advice(required, years).refused
    assert name in refused.requirement
    assert limit in refused.limit
    assert refused.nearest.startswith(nearest)


def test_percent_signs_and_nines_are_read_and_written_the_same() -> None:
    required = requirements_of([("availability", "99.99%"), ("loss-per-year", "1e-6")])
    assert required.text == "--availability 99.99 --loss-per-year 1e-06"


@pytest.mark.usefixtures("quick_forecasts")
def test_caveats_of_a_price_reach_forecast_advice_and_application(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WALPROOF_STATE", str(tmp_path / "state"))
    recorded(tmp_path / "p", "price", price_record(outside=True))
    recorded(tmp_path / "d", "prove", prove_record(Level.ON))
    caveat = "load from outside the cluster"
    assert f"caveat of 1, 2: {caveat}" in ended(capsys, ("advise", "p", "d", "--rpo", "0", "--level", "on"))[1]
    for verb in (("forecast", "p", "d", "--years", "1000"), ("advise", "p", "d", "--rpo", "0")):
        tree = json.loads(ended(capsys, (*verb, "--json"))[1])
        (first, *_) = tree.get("forecasts") or tree["choices"]
        assert any(caveat in text for text in first["caveats"]), verb
    assert caveat in ended(capsys, ("forecast", "p", "d", "--years", "1000", "--html", "-"))[1]
    applying = ("apply", "p", "--rpo", "0", "--target", "sim", "--dry-run")
    assert f"caveat: {caveat}" in ended(capsys, applying)[1]
    assert caveat in json.loads(ended(capsys, (*applying, "--json"))[1])["caveats"]


@pytest.mark.usefixtures("quick_forecasts")
def test_the_command_forecasts_what_was_priced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    ended(capsys, ("prove", "--target", "sim", "--fault", "kill,isolate", "--levels", "on", "--record", "d", "--json"))
    priced = ("--clients", "1", "--levels", "on", "--baseline", "on", "--budget", "10s", "--record", "p", "--json")
    ended(capsys, ("price", "--target", "sim", *priced))
    code, out, _ = ended(capsys, ("advise", "p", "d", "--availability", "99.9", "--loss-per-year", "1e-3", "--json"))
    assert code == 0
    year = json.loads(out)["choices"][0]["year"]
    assert year["availability"]["value"] > 0.999
    code, _, err = ended(capsys, ("advise", "p", "--availability", "99.9"))
    assert code == 2
    assert "needs drills" in err
    code, _, err = ended(capsys, ("advise", "p", "d", "--layout", "z1,z2,z3"))
    assert code == 2
    assert "--layout and --failures need" in err
