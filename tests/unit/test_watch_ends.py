"""What `watch` says when it ends."""

from types import SimpleNamespace

import pytest

from tests.fixtures.command_line import Run, walproof
from tests.fixtures.tiers import each
from walproof.cli import watch
from walproof.watching import exporter

__all__ = ["walproof"]


@each(["--canary --terminal", "--exporter"])
def test_what_a_canary_leaves_is_said(how: str, walproof: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(*_: object) -> SimpleNamespace:
        return SimpleNamespace(close=lambda: "its table stays")

    for where in (watch, exporter):
        monkeypatch.setattr(where, "Canary", ends)
    code, _, err = walproof("watch", "--target", "sim", *how.split(), "--duration", "1s")
    assert code == 0 and err.endswith("walproof: its table stays\n")
