"""The words of the field: doctests and the few rules they carry."""

import pytest

from tests.fixtures.tiers import each
from walproof.errors import UsageError
from walproof.model import units
from walproof.model.guarantee import Level, Loss, survives
from walproof.model.topology import Endpoint


@each(["-1ms", "ten", "3 parsecs", ""])
def test_an_impossible_duration_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        units.duration_s(text)


def test_the_manuals_table() -> None:
    assert not survives(Level.OFF, Loss.POSTGRES_CRASH)
    assert survives(Level.REMOTE_WRITE, Loss.LEADER_AND_STANDBY_POSTGRES)
    assert not survives(Level.REMOTE_WRITE, Loss.LEADER_AND_STANDBY_POWER)
    assert survives(Level.ON, Loss.LEADER_AND_STANDBY_POWER)


def test_conninfo_quotes_what_it_is_given() -> None:
    assert (
        Endpoint((("h", 1),), database="o'b", named=(("h", 1),)).client_conninfo()
        == r"password='' hostaddr='' host='h' port='1' dbname='o\'b' user='postgres'"
    )
