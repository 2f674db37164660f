"""A target that is one folder and one line: observed and written to by the ledger, with no other file touched."""

import pytest

from tests.fixtures import toy
from tests.fixtures.plain_pair import debian_pair
from walproof.model.drill import Capability
from walproof.model.guarantee import Level
from walproof.model.load import LedgerOrder
from walproof.model.waiting import Wait, wait_for
from walproof.proving.lost_commits import compared, judged, lost_rows
from walproof.targets import choose

pytestmark = pytest.mark.lab


def test_a_new_target_is_one_folder_and_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "TARGETS", [toy.TYPE, *choose.TARGETS])
    with debian_pair() as pair:
        target = choose.choose(f"toy:{pair.ports['n1']}:{pair.passfile}")
        view = target.observe()
        assert view.leader == "only"
        able = target.capabilities()
        assert able.ledger is not None
        assert able.why_not(Capability.KILL)
        run = able.ledger.open_ledger(LedgerOrder(Level.LOCAL, writers=2, route="port"))
        wait_for(Wait.WRITERS_UP, lambda: run.progress().acknowledged >= 40, target.clock)
        attempts = run.stop()
        readings = [compared(attempts, able.ledger.read_ledger("only", 0))]
        findings = judged(attempts, readings, lost_rows(attempts, readings))
        able.ledger.drop_ledger()
    assert findings.acknowledged >= 40
    assert (findings.lost, findings.phantom, findings.duplicate, findings.corrupted) == (0, 0, 0, 0)
