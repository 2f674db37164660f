"""A folder that no other user can change, rename or replace: everything below is opened from it, by descriptor.

Each folder above it belongs to root or the current user, and no other may write there: so none can put a link in the
place of what root writes. A folder like /tmp, where everyone may write, is refused although it is sticky."""

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from walproof.machine import untrusted
from walproof.salvaging.refusals import refused

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_LINKS = 40


@dataclass(frozen=True, slots=True)
class PrivateFolder:
    """An open folder, and its path, which nobody else can make another's."""

    path: Path
    opened: int

    def names(self) -> list[str]:
        """What lies in it."""
        return sorted(os.listdir(self.opened))

    def write(self, name: str, text: Iterable[str]) -> Path:
        """A new file that only its owner reads; it has its name once it is whole, and is gone if it never is."""
        unfinished = f"{name}.unfinished"
        with suppress(FileNotFoundError):
            os.stat(name, dir_fd=self.opened, follow_symlinks=False)
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        made = os.open(unfinished, _NEW_FILE, 0o600, dir_fd=self.opened)
        try:
            with open(made, "w", encoding="utf-8", newline="") as file:
                os.fchmod(made, 0o600)
                file.writelines(text)
            os.rename(unfinished, name, src_dir_fd=self.opened, dst_dir_fd=self.opened)
        except BaseException:
            os.unlink(unfinished, dir_fd=self.opened)
            raise
        return self.path / name

    def unlink(self, *names: str) -> None:
        """Remove files in it."""
        for name in names:
            os.unlink(name, dir_fd=self.opened)

    @contextmanager
    def folder(self, name: str, mode: int = 0o700) -> Iterator["PrivateFolder"]:
        """A new folder in it."""
        os.mkdir(name, 0o700, dir_fd=self.opened)
        below = os.open(name, _FOLDER, dir_fd=self.opened)
        try:
            os.fchmod(below, mode)
            yield PrivateFolder(self.path / name, below)
        finally:
            os.close(below)

    def remove(self, name: str) -> bool:
        """Remove a folder in it and all that is below, links themselves; whether none of it is left."""
        with suppress(OSError):
            untrusted.remove_tree(name, self.opened)
        return name not in self.names()


@contextmanager
def private_folder(path: Path) -> Iterator[PrivateFolder]:
    """The folder of that path, made where it is missing; a refusal where another user could replace a part of it."""
    pending, links, at = list(reversed(Path(os.path.abspath(path)).parts[1:])), 0, Path("/")
    with ExitStack() as stack:

        def enter(name: str, above: int | None) -> int:
            opened = os.open(name, _FOLDER, dir_fd=above)
            stack.callback(os.close, opened)
            return opened

        opened = [enter("/", None)]
        _check(path, at, opened[-1])
        try:
            while pending:
                name = pending.pop()
                if name == "..":
                    opened, at = opened[:-1] or opened, at.parent
                    continue
                is_there = os.path.lexists(f"/proc/self/fd/{opened[-1]}/{name}")
                if not is_there:
                    os.mkdir(name, 0o700, dir_fd=opened[-1])
                elif stat.S_ISLNK(os.stat(name, dir_fd=opened[-1], follow_symlinks=False).st_mode):
                    links += 1
                    target = Path(os.readlink(name, dir_fd=opened[-1]))
                    if links > _MOST_LINKS:
                        raise refused("out-unsafe", folder=path, at=at / name, why="its links do not end")
                    parts = target.parts[1:] if target.is_absolute() else target.parts
                    opened, at = (opened[:1], Path("/")) if target.is_absolute() else (opened, at)
                    pending += reversed(parts)
                    continue
                at = at / name
                opened.append(enter(name, opened[-1]))
                _check(path, at, opened[-1])
        except OSError as wrong:
            raise refused("out-unsafe", folder=path, at=at, why=wrong.strerror) from None
        yield PrivateFolder(at, opened[-1])


def _check(path: Path, at: Path, opened: int) -> None:
    status = os.fstat(opened)
    if status.st_uid not in (0, os.geteuid()):
        raise refused("out-unsafe", folder=path, at=at, why=f"it belongs to another user ({status.st_uid})")
    if status.st_mode & 0o022:
        raise refused("out-unsafe", folder=path, at=at, why="other users may write there")
