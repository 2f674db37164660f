"""Power is cut after the journal says that a change is noted: on a copy with only what was flushed, it is there."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fixtures.tiers import each
from walproof.records.journal import Journal


class Disk:
    """What a power cut would leave of a folder: contents of files and names of entries as of their last flush."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.contents: dict[int, bytes] = {}
        """By inode."""
        self.entries: dict[int, dict[str, tuple[int, bool]]] = {root.stat().st_ino: self._listed(root)}
        """Of each folder, by inode: name → (inode, whether it is a folder)."""

    @staticmethod
    def _listed(folder: Path) -> dict[str, tuple[int, bool]]:
        return {e.name: (e.stat().st_ino, e.is_dir()) for e in folder.iterdir()}

    def flushed(self, descriptor: int) -> None:
        """Take note of one fsync."""
        status, path = os.fstat(descriptor), Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if stat.S_ISDIR(status.st_mode):
            if path.is_relative_to(self.root):
                self.entries[status.st_ino] = self._listed(path)
        else:
            self.contents[status.st_ino] = path.read_bytes()

    def after_power_cut(self, copy: Path) -> Path:
        """Write to `copy` what is left."""
        self._restored(self.root.stat().st_ino, copy)
        return copy

    def _restored(self, inode: int, to: Path) -> None:
        to.mkdir()
        for name, (number, is_folder) in self.entries.get(inode, {}).items():
            if is_folder:
                self._restored(number, to / name)
            else:
                (to / name).write_bytes(self.contents.get(number, b""))


def noted(path: Path) -> None:
    journal = Journal(path)
    journal.note(1.0, "c", "alter-system n1", "fsync", before="on", after="off")
    journal.note(2.0, "c", "alter-system n1", "jit", before=None, after="off")


def survived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, forgets: Callable[[int], bool], above: str) -> int:
    """How many changes are pending after a power cut, on a machine whose fsync does nothing where `forgets`."""
    root = tmp_path / "disk"
    root.mkdir()
    disk = Disk(root)
    real = os.fsync

    def fsync(descriptor: int) -> None:
        real(descriptor)
        if not forgets(descriptor):
            disk.flushed(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    noted(root / above / "journal.jsonl")
    return len(Journal(disk.after_power_cut(tmp_path / "copy") / above / "journal.jsonl").pending())


def is_folder(descriptor: int) -> bool:
    return stat.S_ISDIR(os.fstat(descriptor).st_mode)


# rows: old-folder, new-folder, new-folders
@each([".", "new", "new/deeper/record"])
def test_a_noted_change_outlives_a_power_cut(above: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert survived(tmp_path, monkeypatch, forgets=lambda _: False, above=above) == 2


# rows: of-the-file, of-its-folder, of-every-folder, of-the-folder-above, of-the-oldest-folder
@each([
    (lambda descriptor: not is_folder(descriptor), "."),
    (is_folder, "."),
    (is_folder, "new"),
    (lambda descriptor: os.readlink(f"/proc/self/fd/{descriptor}").endswith("/new"), "new/deeper"),
    (lambda descriptor: os.readlink(f"/proc/self/fd/{descriptor}").endswith("/disk"), "new"),
])  # fmt: skip
def test_each_flush_that_is_left_out_loses_the_change(
    forgets: Callable[[int], bool], above: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert survived(tmp_path, monkeypatch, forgets=forgets, above=above) == 0


def test_a_folder_above_that_may_not_be_read_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def refusing(path: Path, flags: int, *more: int) -> int:
        if Path(path) == tmp_path:
            raise PermissionError
        return opened(path, flags, *more)

    monkeypatch.setattr(os, "open", refusing)
    noted(tmp_path / "new" / "journal.jsonl")
    assert len(Journal(tmp_path / "new" / "journal.jsonl").pending()) == 2
