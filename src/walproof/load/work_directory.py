"""A folder in memory for one run of a load: its logs and notes must not compete for the disk under test."""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "walproof-load-"
_MEMORY = Path("/dev/shm")


def new_room() -> Path:
    """A new folder, named after this process; those of processes that were killed are removed first."""
    in_memory = _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK)
    parent = _MEMORY if in_memory else Path(tempfile.gettempdir())
    _sweep(parent)
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=parent))


def _sweep(parent: Path) -> None:
    for left in parent.glob(f"{PREFIX}*"):
        maker = left.name.removeprefix(PREFIX).partition("-")[0]
        with contextlib.suppress(OSError):
            ours = left.lstat().st_uid == os.getuid()
            if ours and maker.isdigit() and not Path(f"/proc/{maker}").exists():
                shutil.rmtree(left, ignore_errors=True)
