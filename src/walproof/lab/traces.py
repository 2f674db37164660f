"""The newest WAL of a lab's member, put aside before Patroni rewinds or clones it again, and shown by pg_waldump."""

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from walproof.errors import MachineError
from walproof.lab.blueprint import Blueprint
from walproof.machine import untrusted
from walproof.model.units import lsn_text

_SEGMENT = re.compile(r"[0-9A-F]{24}")
_SEGMENTS = 2
_MOST_BYTES = 200_000
_DUMP_S = 20.0


@dataclass(frozen=True, slots=True)
class LabTraces:
    """WAL put aside in the lab's own folder, which only its owner reads; it goes with the lab at the latest."""

    blueprint: Blueprint

    def _folder(self, member: str) -> Path:
        return self.blueprint.home / "traces" / member

    def save(self, member: str) -> None:
        """Copy its newest two segments; MachineError when its WAL cannot be read."""
        blueprint, folder = self.blueprint, self._folder(member)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, mode=0o700)
        separate = blueprint.wal_dir(member)
        wal = blueprint.data_dir(member) / "pg_wal" if separate is None else separate
        try:
            segments = [name for name in untrusted.names(blueprint.member_dir(member), wal) if _SEGMENT.fullmatch(name)]
            for name in _newest(blueprint.member_dir(member), wal, segments):
                untrusted.copy(blueprint.member_dir(member), wal / name, folder / name)
        except OSError as wrong:
            raise MachineError(
                f"the WAL of {member} cannot be put aside: {wrong.strerror}", "is its disk there?"
            ) from None

    def describe(self, member: str, *, timeline: int, since: int) -> str:
        """Records from that position on, as pg_waldump prints them, the first 200 kB; MachineError without any."""
        folder = self._folder(member)
        names = sorted(path.name for path in folder.glob("*")) if folder.is_dir() else []
        if not names:
            raise MachineError(f"no WAL of {member} was put aside", "")
        argv = [str(self.blueprint.postgres_bin / "pg_waldump"), "--path", str(folder), "--timeline", str(timeline)]
        first = int(names[0][8:16], 16) * 0x100000000 + int(names[0][16:], 16) * (16 << 20)
        argv += ["--start", lsn_text(max(since, first))]
        dumped = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=_DUMP_S, errors="replace")
        return (dumped.stdout + dumped.stderr)[:_MOST_BYTES]

    def discard(self) -> None:
        """Remove what was put aside."""
        shutil.rmtree(self.blueprint.home / "traces", ignore_errors=True)


def _newest(trusted: Path, wal: Path, segments: list[str]) -> list[str]:
    """The segments written last: recycled ones have later names and older contents."""
    written = {name: untrusted.modified(trusted, wal / name) for name in segments}
    return sorted(sorted(segments, key=lambda name: written[name])[-_SEGMENTS:])
