"""What `walproof guard` refuses, each with one sentence and exit code 2; and what it logs."""

from pathlib import Path

import pytest

from tests.fixtures.command_line import ended
from tests.fixtures.tiers import each
from walproof.cli.guard import _log as log_line

TARGETS = {
    "patroni": 'kind = "patroni"\nrest = ["http://127.0.0.1:1"]',
    "postgres": 'kind = "postgres"\ndsn = "host=127.0.0.1 port=1"',
}


@each([
    (["--suspect-after", "1ms"], "--suspect-after must be from 0.2s"),
    (["--listen", "9189"], "is not HOST:PORT"),
    (["--listen", "0.0.0.0:9189"], "lets other machines read"),
    (["--allow", "takeovers"], "is no consent"),
    (["--allow", "etcd-leader"], "is no consent"),
])  # fmt: skip
def test_what_is_not_valid_is_refused(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = ended(capsys, ["guard", "--target", "cnpg:db/pg", *words])
    assert (code, out) == (2, "")
    assert sentence in err


@pytest.mark.parametrize("target", [None, "lab", "lab:one", "sim", "http://127.0.0.1:1", "host=127.0.0.1", *TARGETS])
@pytest.mark.parametrize("words", [[], ["--dry-run"], ["--allow", "takeover"]])
def test_a_guard_is_of_cloudnativepg_alone(
    target: str | None, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without asking the other target anything: none of these answers, or is up."""
    if target in TARGETS:
        (tmp_path / "t.toml").write_text(TARGETS[target])
        target = str(tmp_path / "t.toml")
    code, out, err = ended(capsys, ["guard", *(["--target", target] if target else []), *words])
    assert (code, out) == (2, "")
    assert "`guard` supports CloudNativePG clusters alone" in err
    assert "docs/decisions/0007-no-guard-for-patroni.md" in err


def test_a_line_of_the_log_is_one_line_whatever_a_tag_says(capsys: pytest.CaptureFixture[str]) -> None:
    """A member's tags are another's words: they could move the terminal, or look like a line of the guard's own."""
    log_line("not ready: n2 (nofailover: \x1b[2J\n2026-11-25 08:00:00.000 n2 leads)")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("not ready: n2 (nofailover: ?[2J 2026-11-25 08:00:00.000 n2 leads)")
