"""Files and folders that only their owner may read, from their first byte on and whatever the umask is."""

import os
from pathlib import Path

FOLDER, FILE = 0o700, 0o600


def make_folder(path: Path) -> None:
    """Create the folder where it is missing, and its parents; one that exists keeps its mode."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(exist_ok=True, mode=FOLDER)


def opener(path: str, flags: int) -> int:
    """For open(): a file that it creates is its owner's alone; a link in its place is an OSError."""
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, FILE)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a whole file; one that was there keeps its mode."""
    with open(path, "wb", opener=opener) as file:
        file.write(data)


def write_text(path: Path, text: str) -> None:
    """Write a whole file; one that was there keeps its mode."""
    with open(path, "w", encoding="utf-8", errors="replace", opener=opener) as file:
        file.write(text)
