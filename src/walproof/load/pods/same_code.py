"""One checksum of the code that makes load, so that what runs in an image is known to be what runs here."""

import hashlib
from importlib.resources import files
from importlib.resources.abc import Traversable

_PACKAGES = ("walproof.load", "walproof.model", "walproof.machine")
_COUNTED = (".py", ".sql", ".txt")


def checksum() -> str:
    """SHA-256 over the names and contents of what is counted, its first 16 digits."""
    found = hashlib.sha256()
    for package in _PACKAGES:
        _add(found, package, files(package))
    return found.hexdigest()[:16]


def _add(found: "hashlib._Hash", path: str, here: Traversable) -> None:
    for one in sorted(here.iterdir(), key=lambda entry: entry.name):
        if one.is_dir():
            _add(found, f"{path}/{one.name}", one)
        elif one.name.endswith(_COUNTED):
            found.update(f"{path}/{one.name}\n".encode() + one.read_bytes())
