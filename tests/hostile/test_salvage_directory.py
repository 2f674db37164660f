"""`walproof salvage` on a stranger's data directory: one sentence, nothing of it run, and not a byte of it changed."""

import hashlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fixtures.command_line import Run, one_sentence, walproof
from tests.fixtures.data_directory import CONTROL, SEGMENT, made_in, wal
from tests.fixtures.tiers import every
from walproof.machine.programs import postgres_bin
from walproof.salvaging import data_directory, plan
from walproof.salvaging.timelines import read_history, segment
from walproof.salvaging.wal_folders import wal_files

__all__ = ["walproof"]
NO_FILE = "does not belong into a data directory"


Makes = Callable[[str], Path]


@pytest.fixture
def makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Makes:
    """Makes data directories of PostgreSQL 15 by their looks, that left the new primary's history at 0/410000."""
    reads = data_directory._control

    def control(of: Path, programs: Path, content: bytes) -> dict[str, str]:
        return dict(CONTROL) if content == b"control" else reads(of, programs, content)

    def make(name: str) -> Path:
        made = made_in(tmp_path / name / "old")
        wal(made / "pg_wal", 3, 4)
        return made

    monkeypatch.setattr(data_directory, "_control", control)
    monkeypatch.setattr(data_directory, "_programs", lambda *_: postgres_bin(None))
    monkeypatch.setattr(plan, "try_here", lambda _: None)
    monkeypatch.setattr(plan, "identity", lambda _: (7, 2, 15))
    monkeypatch.setattr(plan, "history", lambda line, *_: read_history(line, {1: "", 2: "1 0/410000"}[line]))
    return make


def put(path: Path, kind: str) -> None:
    """In the place of what is there: a link, a pipe, a socket, a sparse file of a terabyte, or this text."""
    if path.is_dir() and not path.is_symlink():
        path.rename(path.parent.parent / f"was-{path.name}")
    path.unlink(missing_ok=True)
    name, _, text = kind.partition(" ")
    if name == "link":
        path.symlink_to(text)
    elif name == "pipe":
        os.mkfifo(path)
    elif name == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(path))
    elif name == "huge":
        with path.open("wb") as file:
            file.truncate(1 << 40)
    elif name == "folder":
        path.mkdir()
    else:
        path.write_text(kind)


def state(directory: Path) -> str:
    """A checksum of names, kinds, owners, times and contents below it; of a huge file its size."""
    digest = hashlib.sha256()
    for folder, folders, names in os.walk(os.fsencode(directory)):
        for path in sorted(os.path.join(folder, name) for name in (*folders, *names)):
            status = os.lstat(path)
            digest.update(path + repr((status.st_mode, status.st_uid, status.st_size, status.st_mtime_ns)).encode())
            if os.path.isfile(path) and not os.path.islink(path) and status.st_size < 1 << 21:
                with open(path, "rb") as file:
                    digest.update(file.read())
    return digest.hexdigest()


def salvaged(walproof: Run, directory: Path, *words: str) -> tuple[int, str, str]:
    before = state(directory)
    out = str(directory.parent / "lost")
    done = walproof("salvage", "--old", str(directory), "--new", "host=127.0.0.1 port=1", "--out", out, *words)
    assert state(directory) == before
    assert not Path(out).exists()
    return done


CONTENTS = ("PG_VERSION", "backup_label", "global/pg_control")
PUT: dict[tuple[str, int], tuple[tuple[str, ...], tuple[str, ...]]] = {
    ("cannot be read", 3): (
        CONTENTS, ("link /etc/passwd", "link loop", "pipe", "socket", "huge", "folder"),
    ),
    ("PG_VERSION says", 2): (("PG_VERSION",), ("\x1b]0;title\x07",)),
    ("PG_VERSION says 9999", 2): (("PG_VERSION",), ("9" * 5000,)),
    ("was rewound", 2): (("backup_label",), ("BACKUP METHOD: pg_rewind\n",)),
    ("corrupt or encrypted", 3): (("global/pg_control",), ("x" * 8192, "")),
    (NO_FILE, 3): (
        ("base", "base/5", "base/5/1259", "base/5/\x1b[2J\n", "base/5/\udcff", "pg_xact", "pg_xact/0000",
         "pg_twophase/00000007"), ("link /etc/shadow", "pipe", "socket"),
    ),
    ("more than any file there", 3): (("base/5/1259", "pg_multixact/0000"), ("huge",)),
    ("tablespace", 3): (
        ("pg_tblspc/16500", "pg_tblspc/evil"), ("link /nonexistent", "link /proc/self", "link 16500", "link /", "pipe"),
    ),
    ("no longer reaches the fork", 3): (("pg_wal",), ("link /nonexistent", "link pg_wal", "pipe")),
    ("no longer reaches the fork ", 3): (
        (f"pg_wal/{segment(1, 4, SEGMENT)}",), ("link /dev/zero", "pipe", "huge", "short", "folder"),
    ),
}  # fmt: skip
"""By what is said then, and its exit code: what lies in these places."""


def test_what_no_server_puts_there_is_refused_in_one_sentence(makes: Makes, walproof: Run) -> None:
    def is_refused(number: int, place: str, kind: str, says: str, code: int) -> None:
        directory = makes(str(number))
        put(directory / place, kind)
        one_sentence(salvaged(walproof, directory), says.strip(), code)

    rows = [(place, kind, *says) for says, (places, kinds) in PUT.items() for place in places for kind in kinds]
    rows += [(place, "link /etc", says, 3) for place, says in (("global", "cannot be read"), ("pg_tblspc", NO_FILE))]
    rows += [("base/5/1259", "link /dev/zero", NO_FILE, 3)]
    every([(number, *row) for number, row in enumerate(rows)], is_refused)


def test_folders_in_folders_are_refused_however_deep(makes: Makes, walproof: Run) -> None:
    directory = makes("deep")
    here = os.open(directory / "base", os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("a", dir_fd=here)
        below = os.open("a", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    changed = (directory / "base/a").stat().st_ctime_ns
    try:
        done = walproof("salvage", "--old", str(directory), "--new", "host=127.0.0.1 port=1", "--dry-run")
        one_sentence(done, NO_FILE, 3)
        assert (directory / "base/a").stat().st_ctime_ns == changed
    finally:
        subprocess.run(["rm", "-r", directory / "base"], check=True)  # deeper than Python goes


PLANTED = {
    "postgresql.conf": "shared_preload_libraries = '{0}/evil.so'\narchive_command = 'touch {1}'\n"
                       "include_dir = '/etc'\nssl_passphrase_command = 'touch {1}'\n",
    "postgresql.auto.conf": "restore_command = 'touch {1}'\narchive_library = 'evil'\n",
    "recovery.conf": "recovery_end_command = 'touch {1}'\n",
    "recovery.signal": "",
    "standby.signal": "",
    "pg_hba.conf": "host all all 0.0.0.0/0 trust\n",
    "pg_ident.conf": "include /etc/shadow\n",
    "postmaster.pid": "1\n/\n0\n5432\n",
    "postmaster.opts": "postgres -c archive_command='touch {1}'\n",
    "tablespace_map": "16500 /etc\n",
    "pg_controldata": "#!/bin/sh\ntouch {1}\n",
    "evil.so": "\x7fELF",
    "pg_replslot/evil": "",
    "pg_logical/replorigin_checkpoint": "evil",
    "pg_stat/pgstat.stat": "evil",
}  # fmt: skip


def test_no_setting_library_program_or_slot_of_it_is_run_or_copied(makes: Makes, walproof: Run, tmp_path: Path) -> None:
    directory, canary, work = makes("planted"), tmp_path / "executed", tmp_path / "work"
    for name, text in PLANTED.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(text.format(directory, canary))
        (directory / name).chmod(0o755)
    code, out, _ = salvaged(walproof, directory, "--dry-run")
    assert (code, "parted at 0/410000 on timeline 1" in out) == (0, True)
    before, old = state(directory), data_directory.inspect(directory, None)
    work.mkdir()
    list(data_directory.copy(old, wal_files(old, None), 0, work))
    assert [name for name in PLANTED if (work / "data" / name).exists()] == []
    assert not canary.exists() and state(directory) == before


CALLED = "import sys; open('/proc/self/comm', 'w').write(sys.argv[1]); print(flush=True); sys.stdin.read()"
LOOKS = """
import pathlib, sys
from walproof.salvaging.running_servers import check_unused
check_unused(pathlib.Path(sys.argv[1]))
"""
NO_PTRACE = "setpriv --bounding-set -sys_ptrace --inh-caps -sys_ptrace"
IN_CONTAINER = "unshare --user --map-user=61200"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run as another")
def test_a_server_that_may_not_be_looked_at_or_has_another_uid_on_disk_is_not_passed_over(tmp_path: Path) -> None:
    """A mount with mapped ids gives a container's server the directory; its files have another uid on disk."""
    directory = made_in(tmp_path / "old")
    os.chown(directory, 61200, 61200)

    def is_told(looker: str, user: str, program: str, says: str) -> None:
        argv = ["setpriv", "--clear-groups", "--reuid", *user.split(), sys.executable, "-I", "-c", CALLED, program]
        where = directory if program == "postgres" else tmp_path
        with subprocess.Popen([*argv, "-D", directory], cwd=where, stdin=-1, stdout=-1) as process:
            assert process.stdout is not None and process.stdout.readline() == b"\n"
            look = [*looker.split(), sys.executable, "-c", LOOKS, str(directory)]
            looked = subprocess.run(look, capture_output=True, text=True, check=False)
            process.communicate()
        assert (looked.returncode == 0) is not bool(says)
        assert says in looked.stderr and (not says or f"process {process.pid}" in looked.stderr)

    rows = [
        ("env", "61200", "postgres", "PostgreSQL runs in it"),
        ("env", "61201", "postgres", "PostgreSQL runs in it"),
        ("env", "61201", "pg_rewind", ""),  # he names what he likes
        ("env", f"61201 {IN_CONTAINER}", "pg_rewind", "PostgreSQL runs in it"),
        (NO_PTRACE, "61200", "postgres", "cannot be known"),
        (NO_PTRACE, "61200", "pg_rewind", "cannot be known"),
        (NO_PTRACE, "61201", "postgres", ""),
        (NO_PTRACE, f"61201 {IN_CONTAINER}", "postgres", "cannot be known"),
    ]
    every(rows, is_told)
