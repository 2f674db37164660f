""".walproof.toml of the current folder, which nobody named: whoever may write in that folder accepts nothing for us."""

import os
from pathlib import Path

import pytest

from tests.fixtures.command_line import Run as Walproof
from tests.fixtures.sick import well, with_settings
from tests.fixtures.tiers import each, every
from walproof.cli import doctor

ACCEPTS = '[[accept]]\ncheck = "fsync-off"\nreason = "fine"\nuntil = 2999-01-01\n'
NOT_HEEDED = "accepts nothing: others own it, or may write in it"

CASES = [
    ("ours", "ours", 0o644, {"files", "live", "elsewhere"}),
    ("ours", "ours", 0o646, set()),
    ("ours", "ours", 0o664, {"files", "live", "elsewhere"}),
    ("ours", "a team's", 0o664, set()),
    ("ours", "a team's", 0o644, {"files", "live", "elsewhere"}),
    ("ours", "theirs", 0o644, set()),
    ("theirs", "ours", 0o644, {"files", "live", "elsewhere"}),
    ("theirs", "theirs", 0o644, {"files"}),
]
"""Whose the folder is and the file in it, the file's mode, and for what of a doctor it is heeded."""


@each(CASES, whole=True)
def test_it_is_heeded_where_it_is_ours_or_of_the_tree_that_is_examined(
    case: tuple[str, str, int, set[str]], tmp_path: Path, walproof: Walproof, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, file, mode, heeded = case
    if {"theirs", "a team's"} & {folder, file} and os.geteuid() != 0:
        pytest.skip("only root may give a file away")
    here, accepts = tmp_path / "here", tmp_path / "here/.walproof.toml"
    here.mkdir()
    for place in (tmp_path, here):
        (place / "postgresql.conf").write_text("fsync = off\n")
    accepts.write_text(ACCEPTS)
    accepts.chmod(mode)
    for path, whose in ((here, folder), (accepts, file)):
        if whose == "theirs":
            os.chown(path, 1234, 1234)
        elif whose != "ours":
            os.chown(path, -1, 1234)
    monkeypatch.setattr(doctor, "_facts", lambda _: with_settings(well(), "n2", fsync="off"))
    monkeypatch.chdir(here)

    def answers(what: str, words: tuple[str, ...]) -> None:
        code, out, err = walproof("doctor", *words)
        assert (code, NOT_HEEDED in err) == ((0, False) if what in heeded else (1, True)), (out, err)
        assert "fsync-off" in out

    examined = {"files": ("postgresql.conf",), "live": ("--target", "prod"), "elsewhere": ("../postgresql.conf",)}
    every(examined.items(), answers)
