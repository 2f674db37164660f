"""A directory in memory for one run of a load: its files must not compete for the disk under test."""

import atexit
import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from walproof.machine.signals import shielded

PREFIX = "walproof-load-"
_MEMORY = Path("/dev/shm")


def new_work_directory() -> Path:
    """A new directory, named after this process; those of processes that were killed are removed first."""
    remove_left()
    with shielded():
        made = tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=_parent())
        # A signal may come before whoever asked for it can remove it.
        atexit.register(shutil.rmtree, made, ignore_errors=True)
    return Path(made)


def _parent() -> Path:
    in_memory = _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK)
    return _MEMORY if in_memory else Path(tempfile.gettempdir())


def remove_left() -> None:
    """Remove the directories of processes that were killed."""
    for left in _parent().glob(f"{PREFIX}*"):
        owner = left.name.removeprefix(PREFIX).partition("-")[0]
        with contextlib.suppress(OSError):
            ours = left.lstat().st_uid == os.getuid()
            if ours and owner.isdigit() and not Path(f"/proc/{owner}").exists():
                shutil.rmtree(left, ignore_errors=True)
