"""The guard in a forecast: from drills with one where there are any, else assumed or as without; and stated."""

from dataclasses import replace

import pytest

from tests.fixtures.forecasts import drill, failure, failures, lost, record, rng
from walproof.forecasting.failure_rates import Failures
from walproof.forecasting.forecast import forecast
from walproof.forecasting.outages_from_drills import Basis, Model, measured, takeovers
from walproof.forecasting.topology import Configuration, topology
from walproof.model.drill import Drill
from walproof.model.guarantee import Level, QuorumKind

pytestmark = pytest.mark.usefixtures("quick_forecasts")
KINDS = failures(failure("crash", 1.0))
PLAIN = Configuration(Level.ON, QuorumKind.ANY, 1)
GUARDED = replace(PLAIN, guarded=True)


def _model(what: Configuration, *drills: Drill, kinds: Failures = KINDS) -> Model:
    return Model(topology("z1,z2,z3"), what, kinds, measured([record(*drills)], kinds))


def test_drills_with_a_guard_are_of_the_guard_alone() -> None:
    drills = (*[drill(rto_s=22.0)] * 5, *[drill(rto_s=2.5, guarded=True)] * 5)
    seen = {what: takeovers(_model(what, *drills), KINDS.kinds[0], 100, rng()) for what in (PLAIN, GUARDED)}
    assert set(seen[PLAIN]) == {22.0}
    assert set(seen[GUARDED]) == {2.5}


@pytest.mark.parametrize(
    ("takeover_s", "guarded_drills", "basis", "stated"),
    [
        ((3.0, 4.0), 5, Basis.GUARDED, "takeovers with a guard as drilled: crash"),
        ((3.0, 4.0), 0, Basis.GUARD_ASSUMED, "assumed to take 3 to 4 s, never drilled with a guard: crash"),
        (None, 5, Basis.GUARDED, "takeovers with a guard as drilled: crash"),
        (None, 0, Basis.DRILLED, "as without a guard, because never drilled with one: crash"),
    ],
)
def test_the_forecast_says_what_the_guards_takeover_rests_on(
    takeover_s: tuple[float, float] | None, guarded_drills: int, basis: Basis, stated: str
) -> None:
    drills = (*[drill(rto_s=22.0)] * 5, *[drill(rto_s=2.5, guarded=True)] * guarded_drills)
    here = _model(replace(GUARDED, takeover_s=takeover_s), *drills)
    assert here.basis(KINDS.kinds[0]) is basis
    made = forecast(here, "z1,z2,z3", years=100, seed=1)
    assert made.guard == stated
    assert made.text == "on ANY 1 strict with guard"


def test_without_a_guard_nothing_is_said_of_it() -> None:
    assert forecast(_model(PLAIN, drill()), "z1,z2,z3", years=100, seed=1).guard == ""


def test_losses_with_a_guard_come_from_its_own_drills_where_there_are_any() -> None:
    known = measured([record(*[lost(9)] * 4, *[drill(Level.LOCAL, guarded=True)] * 3)], KINDS)
    assert (known.loss("crash", Level.LOCAL).losing, known.loss("crash", Level.LOCAL).drills) == (4, 4)
    with_guard = known.loss("crash", Level.LOCAL, guarded=True)
    assert (with_guard.losing, with_guard.drills) == (0, 3)
    never = known.loss("crash", Level.ON, guarded=True)
    assert never.drills == 0


def test_guarded_drills_alone_say_nothing_of_a_cluster_without_a_guard() -> None:
    here = _model(PLAIN, drill(rto_s=2.5, guarded=True))
    assert here.measured.has_takeovers
    assert here.basis(KINDS.kinds[0]) is Basis.ASSUMED
