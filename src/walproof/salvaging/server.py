"""The copy as a server: no network, no setting, library or program of the directory, an ordinary user, ended with us.

It replays its WAL in single-user mode, where no event trigger fires, and then answers on a private socket."""

import os
import re
import resource
import secrets
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, BinaryIO

import psutil
import psycopg

from walproof.lab.privileges import apart, confined_alone, member_uid, number_of_no_lab
from walproof.machine.answering import BoundedLogin
from walproof.machine.clock import RealClock
from walproof.machine.sql_file import statements
from walproof.model.waiting import Wait, wait_for
from walproof.salvaging.data_directory import EMPTY, OldServer, environment, give, take
from walproof.salvaging.refusals import refused
from walproof.salvaging.timelines import history_text, segment

_FILES = files("walproof.salvaging")
QUERIES = statements("walproof.salvaging", "queries.sql")
SESSION = dict(line.split("=", 1) for line in (_FILES / "session.conf.txt").read_text("utf-8").splitlines())
"""Of our sessions in the copy: no database or role of it sets them otherwise, and no library of it is loaded."""


_READ, _WINDOW = 16 << 20, 1 << 20
_LEAST = 64 << 20
"""Bytes that a part of the memory has at least."""
_LIBRARIES = ("pageinspect", "pg_surgery")
"""PostgreSQL's contrib, of which queries.sql makes functions."""


def _ends(file: BinaryIO) -> tuple[str, str]:
    """The first and the last MiB that the copy's server printed: its catalogs may make it print without an end."""
    length = file.seek(0, os.SEEK_END)
    parts = []
    for at in (0, max(0, length - _READ)):
        file.seek(at)
        parts.append(file.read(_READ).decode(errors="replace"))
    return parts[0], parts[1]


@contextmanager
def bounded_memory(parts: int = 1) -> Iterator[None]:
    """This process, and what it starts, gets half of the free memory, or one of so many parts of what it has left of
    that: psycopg.OperationalError or MemoryError then.

    Over a Unix socket, whose bytes the kernel does not count, an answer ends no other way.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    has, most = psutil.Process().memory_info().vms, psutil.virtual_memory().available // 2
    left = most if soft == resource.RLIM_INFINITY else max(0, min(most, soft - has))
    resource.setrlimit(resource.RLIMIT_AS, (has + min(left, max(_LEAST, left // parts)), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def try_here(old: OldServer) -> None:
    """A refusal where this machine lacks what a copy of that server takes: a copy of nothing is made, and removed."""
    with number_of_no_lab() as number, tempfile.TemporaryDirectory(prefix="walproof-salvage-") as closed:
        work, sockets = Path(closed, "work"), Path(closed, "sockets")
        for folder in (work / "tablespaces", sockets, work / "data/global", *(work / "data" / name for name in EMPTY)):
            folder.mkdir(parents=True, exist_ok=True)
        work.chmod(0o711)
        (work / "data/PG_VERSION").write_text(f"{old.major}\n")
        (work / "data/global/pg_control").write_bytes(old.pg_control)
        with bounded_memory():
            Copy(replace(old, history=()), work, sockets, number).try_here()


@dataclass(slots=True)
class Copy:
    """The copy below `work` while it is ours; `databases` by their oids, `role`: our superuser, and our schema.

    `number`: of the user that it runs as, and that nothing else does: its catalogs may be a stranger's."""

    old: OldServer
    work: Path
    sockets: Path
    number: int
    role: str = field(default_factory=lambda: f"walproof_{secrets.token_hex(6)}")
    databases: dict[int, bytes] = field(default_factory=dict)

    @property
    def socket(self) -> Path:
        """The folder of its socket: its user's own, below one of ours that it may enter."""
        return self.sockets / "s"

    def __post_init__(self) -> None:
        """Give it configuration of its own, and all of it to a user without rights."""
        self.sockets.chmod(0o711)
        names = ("max_connections", "max_prepared_xacts", "max_locks_per_xact", "track_commit_timestamp")
        asked = {name: self.old.control.get(f"{name} setting", "?") for name in names}
        if not all(re.fullmatch("[0-9]+|on|off", value) for value in asked.values()):
            raise refused("corrupt-control", directory=self.old.directory, why="it lacks settings")
        text = (_FILES / "copy_postgresql.conf.txt").read_text("utf-8").format(sockets=self.socket, **asked)
        more = "max_active_replication_origins = 1000\n" if self.old.major >= 18 else ""
        user = member_uid(self.number)
        passwd = f"walproof:x:{user}:{user}::/:/usr/sbin/nologin\n"
        texts = {"data/postgresql.conf": text + more, "data/pg_hba.conf": "local all all trust\n", "passwd": passwd}
        if self.old.history[1:]:  # in our words: recovery reads it where WAL of a timeline before is needed
            texts[f"data/pg_wal/{self.old.history[-1].timeline:08X}.history"] = history_text(self.old.history)
        for name, content in {**texts, "data/pg_ident.conf": ""}.items():
            (self.work / name).write_text(content)
            (self.work / name).chmod(0o644)
        take(self.old, self.work, user)

    def _start(self, argv: Sequence[str | Path], **pipes: Any) -> "subprocess.Popen[str]":
        """A program of PostgreSQL's as a user of no rights, without network, ended with us."""
        typed = [str(self.old.programs / argv[0]), *map(str, argv[1:])]
        confined = confined_alone(self.number, typed, self.work, self.sockets)
        return subprocess.Popen(confined, text=True, errors="replace", **apart(env=environment(), **pipes))

    def try_here(self) -> None:
        """A refusal where the programs do not run here, or lack what rows are read with: they are started with nothing
        of the directory but its pg_control, and end, having said that they start, where they find no WAL."""
        preloads = f"shared_preload_libraries={','.join(f'$libdir/{one}' for one in _LIBRARIES)}"
        # Its pg_control's own may be a stranger's, who would have memory for any number of them taken.
        least = ("max_connections=10", "max_locks_per_transaction=64", "max_prepared_transactions=0", preloads)
        argv: list[str | Path] = ["postgres", "-D", self.work / "data", *(f"--{one}" for one in least)]
        with tempfile.TemporaryFile(dir=self.work) as out:
            with self._start(argv, stdout=out, stderr=out) as process:
                try:
                    process.wait()
                except BaseException:
                    process.kill()
                    raise
            said = _ends(out)[0]
        if "LOG:  starting PostgreSQL" not in said:
            wrong = re.search(r"(?:ERROR|FATAL|PANIC):  (.*)", said)
            why = wrong[1][:300] if wrong else said.strip()[-300:]
            raise refused("no-contrib" if any(one in why for one in _LIBRARIES) else "no-run", why=why)

    def wal(self, timeline: int) -> Callable[[int, int], bytes]:
        """Bytes of that timeline's WAL from a position on, as WalReader asks for them; some of it is kept."""

        @lru_cache(4)
        def window(number: int) -> bytes:
            segment_number, at = divmod(number * _WINDOW, self.old.segment_size)
            try:
                path = self.work / "data/pg_wal" / segment(timeline, segment_number, self.old.segment_size)
                with path.open("rb") as file:
                    return os.pread(file.fileno(), _WINDOW, at)
            except FileNotFoundError:
                return b""
            except OSError as wrong:
                raise refused("wal-unreadable", why=f"{path.name}: {wrong.strerror}") from None

        return lambda at, count: window(at // _WINDOW)[at % _WINDOW : at % _WINDOW + count]

    def single(self, database: str, commands: str, refusal: str = "no-start") -> str:
        """What the server prints in single-user mode: recovery first, then these commands, one a line."""
        options = ("--single", "-D", self.work / "data", "-c", "lock_timeout=10s")
        with tempfile.TemporaryFile(dir=self.work) as out, tempfile.TemporaryFile(dir=self.work) as log:
            files = {"stdin": subprocess.PIPE, "stdout": out, "stderr": log}
            with self._start(["postgres", *options, "--", database], **files) as process:
                try:
                    process.communicate(commands)
                except BaseException:
                    process.kill()
                    raise
            (answer, _), (first, last) = _ends(out), _ends(log)
        # At the begin of a line: further on there are names of users, and what goes on in another line is indented.
        wrong = re.search(r"(?m)^(?:ERROR|FATAL|PANIC):  (.*)", first + "\n" + last.partition("\n")[2])
        if process.returncode or wrong:
            raise refused(refusal, why=wrong[1][:300] if wrong else last.strip()[-300:])
        return answer

    def replay(self) -> None:
        """Replay the WAL to its end; make our role; `databases` are all of them, and one that takes no sessions takes
        some here: its owner, who need be no superuser, may have said so. Their names are bytes, in encodings of theirs.

        What is prepared holds locks of any role's: it is forgotten, as nothing of it is read here.
        """
        self.single("template1", "")
        try:
            self._forget_prepared()
        except OSError as wrong:
            raise refused("no-start", why=f"pg_twophase: {wrong.strerror}") from None
        said = self.single("template1", f"CREATE ROLE {self.role} SUPERUSER LOGIN\n{QUERIES['databases']}")
        oids, names = (re.findall(f'{column} = "([0-9a-f]*)"', said) for column in ("oid", "name"))
        try:
            pairs = zip(oids, names, strict=True)
            self.databases = {int(oid[:10]): bytes.fromhex(name) for oid, name in pairs}
        except ValueError:
            raise refused("no-start", why="it answers oddly which databases it has") from None

    def _forget_prepared(self) -> None:
        """Code of the directory's catalogs may have run as the folder's user: no link of his is followed."""
        folder = os.open(self.work / "data/pg_twophase", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        with ExitStack() as stack:
            stack.callback(os.close, folder)
            for prepared in os.listdir(folder):
                os.unlink(prepared, dir_fd=folder)

    def add_functions(self, database: str) -> None:
        """pageinspect's and pg_surgery's, in a schema of our own: the extensions that are there may be a stranger's."""
        self.single(database, QUERIES["functions"].format(self.role), "no-contrib")

    def connect(self, database: str) -> "psycopg.Connection[Any]":
        """A read-only session of the superuser that we made; settings of database and role are overridden."""
        session = {"session_authorization": self.role, **SESSION}
        session |= {"event_triggers": "off"} if self.old.major >= 17 else {}
        options = " ".join(f"-c {name}={value}" for name, value in session.items())
        words = {"host": str(self.socket), "port": "5432", "user": self.role, "dbname": database, "options": options}
        # It may be code of a stranger's that answers there: nothing of our environment is its.
        words |= {"sslmode": "disable", "gssencmode": "disable", "require_auth": "none", "connect_timeout": "30"}
        words |= {"password": "", "passfile": "/nonexistent", "hostaddr": ""}
        return BoundedLogin.connect(**words, autocommit=True)  # type: ignore[arg-type]

    @contextmanager
    def started(self) -> Iterator[None]:
        """The copy answers while the block runs; a refusal with its last words when it does not."""
        log = self.work / "server.log"
        self.socket.mkdir(0o755)
        give((self.socket,), member_uid(self.number))
        with log.open("wb") as out:
            process = self._start(["postgres", "-D", self.work / "data"], stdout=out, stderr=out)
        try:
            wait_for(Wait.PROGRAM_READY, lambda: process.poll() is not None or self._answers(), RealClock())
            if process.poll() is not None:
                with log.open("rb") as said:
                    raise refused("no-start", why=_ends(said)[1].strip()[-300:])
            yield
        finally:
            process.kill()  # and with it all that runs in its namespace
            process.wait()

    def _answers(self) -> bool:
        """Whether it lets us in, once its socket is there, in whose place its code cannot put a link any more: root's
        connect(2) would follow one to any socket of the machine."""
        place = self.socket / ".s.PGSQL.5432"
        with suppress(FileNotFoundError, psycopg.OperationalError):
            if stat.S_ISSOCK(place.lstat().st_mode):
                self.socket.chmod(0o755)  # its server may be about to set the socket's mode
                os.chown(self.socket, os.geteuid(), os.getegid())
                if stat.S_ISSOCK(place.lstat().st_mode):
                    with closing(self.connect("template1")):
                        return True
        return False
