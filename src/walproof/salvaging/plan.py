"""What is known before anything is copied: both servers inspected, the fork found, WAL and files listed. Only reads."""

import os
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from walproof.errors import Error
from walproof.lab.privileges import namespaces
from walproof.load.open_session import open_session
from walproof.machine.answering import BoundedLogin, answering
from walproof.model import session_settings
from walproof.salvaging import data_directory, wal_folders
from walproof.salvaging.answers import answered, maybe, number, truth, word
from walproof.salvaging.data_directory import OldServer, small_text
from walproof.salvaging.private_folder import private_folder
from walproof.salvaging.refusals import refused
from walproof.salvaging.rows import UNREADABLE
from walproof.salvaging.server import QUERIES, SESSION, try_here
from walproof.salvaging.timelines import Span, lost_spans, read_history, segment, segment_start, since

_OF_SUPERUSERS = ("session_preload_libraries", "dynamic_library_path")
_MOST = 200
"""Segments up to which WAL before the fork is read too, for what transactions wrote that were open at it."""


Planned: TypeAlias = tuple[int, int]
"""The new primary of a plan: its system identifier and its timeline, on which no other server has led."""
Sessions: TypeAlias = Callable[..., AbstractContextManager["psycopg.Connection[Any]"]]
"""What opens sessions of the new primary that was planned with (`new_session`)."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`wal`: the file of each segment to copy, `present`: of all; `unread`: files that may hold others, whose names
    they are; `begin`: where reading begins, `reads`: the spans that it goes over, from where it
    is needed; the last one ends where the segments do. Without spans nothing was lost.
    `links`: what lies outside of the directory, by its place. `in_place`: its files are linked, not copied.
    `elsewhere`: why more may be lost, of later timelines."""

    old: OldServer
    new_timeline: int
    spans: tuple[Span, ...]
    copied_bytes: int = 0
    begin: int = 0
    wal: dict[str, Path] = field(default_factory=dict)
    present: dict[str, Path] = field(default_factory=dict)
    unread: dict[Path, str] = field(default_factory=dict)
    reads: tuple[Span, ...] = ()
    links: dict[str, Path] = field(default_factory=dict)
    in_place: bool = False
    elsewhere: tuple[str, ...] = ()

    @property
    def primary(self) -> Planned:
        return self.old.system, self.new_timeline


def plan(directory: Path, new: str, archive: Path | None, programs: Path | None, *, in_place: bool = False) -> Plan:
    """The plan, of the old primary's directory and the new one's DSN; every reason why there is none is a refusal."""
    if archive is not None and not archive.is_dir():
        raise refused("no-archive", folder=archive)
    archive = archive and archive.resolve()
    require_root()
    old = data_directory.inspect(directory, programs)
    if in_place:
        with private_folder(old.directory.parent):  # or it could become another one meanwhile
            pass
    system, timeline, major = identity(new)
    if system != old.system:
        raise refused("another-cluster", directory=old.directory, old=old.system, new=system)
    if major != old.major:
        raise refused("another-version", directory=old.directory, old=old.major, new=major)
    try:
        outside = data_directory.links(old)
        old = replace(old, history=history(old.timeline, (old.wal, archive)))
        theirs = history(timeline, (archive,), new)
        wal_folders.check_own(old, theirs)
        spans = lost_spans(old.history, theirs)
        if not spans:
            return Plan(old, timeline, ())
        unread = wal_folders.unread_files(old, archive)
        needed_from, fork = min(old.redo, spans[0].start), spans[0].start
        present = wal_folders.wal_files(old, archive, needed_from)
        others = tuple(wal_folders.elsewhere(old, theirs, archive, present, unread))
    except ValueError as wrong:
        raise refused("bad-history", why=wrong) from None
    wal, size = dict.fromkeys(wal_folders.needed_wal(old, spans, present, unread)), old.segment_size
    end = segment_start(list(wal)[-1], size) + size
    spans, reads = ((*some[:-1], replace(some[-1], end=end)) for some in (spans, since(old.history, needed_from)))
    first, most = needed_from // size, fork // size - _MOST
    while first > max(1, most) and (name := segment(reads[0].timeline, first - 1, size)) in present:
        first, wal[name] = first - 1, None
    whole = data_directory.size(old, in_place=in_place)
    copied = len(wal) * size + (0 if in_place else whole)
    files = {name: present[name] for name in wal}
    begin = max(first, 1) * size
    try_here(old)
    return Plan(old, timeline, spans, copied, begin, files, present, unread, reads, outside, in_place, others)


def require_root() -> None:
    """A refusal where the copy's server could not be kept apart from all else."""
    if os.geteuid() != 0:
        raise refused("not-root")
    done = subprocess.run(
        [*namespaces(), "true"], capture_output=True, text=True, errors="replace", check=False, cwd="/"
    )
    if done.returncode:
        raise refused("no-namespaces", why=done.stderr.strip()[-200:])


@contextmanager
def of_new_primary() -> Iterator[None]:
    """What fails inside is told as the new primary's: nothing else is done there than to ask it."""
    try:
        yield
    except UNREADABLE as wrong:
        raise refused("no-answer", why=wrong) from None


@contextmanager
def new_session(
    dsn: str, *, reads_only: bool = True, planned: Planned | None = None, **more: str
) -> Iterator["psycopg.Connection[Any]"]:
    """A session in autocommit; a refusal for what is no DSN, or where nobody lets us in, or another server than was
    `planned` with answers by it now: for no error in it.
    """
    not_set = _OF_SUPERUSERS if reads_only else (*_OF_SUPERUSERS, "search_path", "default_transaction_read_only")
    ours = {name: value for name, value in {**session_settings.SESSION, **SESSION}.items() if name not in not_set}
    options = " ".join(f"-c {name}={value}" for name, value in ours.items())
    try:
        words = make_conninfo(
            dsn, **{"application_name": "walproof salvage", "connect_timeout": "10", **more, "options": options}
        )
    except psycopg.ProgrammingError:
        raise refused("no-dsn") from None
    with ExitStack() as stack:
        with of_new_primary():
            opened = stack.enter_context(closing(_opened(words, replicates="replication" in more)))
            if "replication" not in more:
                # A database's owner may have set another for all sessions: that of a superuser would seem to be none.
                opened.execute(sql.SQL("SET SESSION AUTHORIZATION {}").format(sql.Identifier(opened.info.user)))
            if planned:
                ((system, name),) = answered(opened.execute(QUERIES["leads"]).fetchall(), number, maybe(word))
                if name is None or planned != (system, int(name[:8], 16)):
                    raise refused("another-primary")
        yield opened


def _opened(words: str, *, replicates: bool) -> "psycopg.Connection[Any]":
    return BoundedLogin.connect(words, autocommit=True) if replicates else open_session(words)


def identity(dsn: str) -> tuple[int, int, int]:
    """System identifier, timeline and major version of a primary; a refusal for a standby."""
    with of_new_primary(), new_session(dsn) as asked:
        answer = asked.execute(QUERIES["identity"]).fetchall()
        ((system, is_standby, major, is_superuser),) = answered(answer, number, truth, number, truth)
        if is_standby:
            raise refused("standby")
        if is_superuser:
            # Planning a query runs the functions of a table's index predicates, which its owner wrote.
            raise refused("superuser")
        ((name,),) = answered(asked.execute("SELECT pg_walfile_name(pg_current_wal_insert_lsn())").fetchall(), word)
    return system, int(name[:8], 16), major


def history(timeline: int, folders: Iterable[Path | None], dsn: str = "") -> tuple[Span, ...]:
    """The spans of its history: of a file in these folders, or over the replication protocol, which asks for
    REPLICATION; ValueError for one that is none."""
    name = f"{timeline:08X}.history"
    text = next(filter(None, (small_text(folder, name) for folder in folders if folder)), "")
    if not text and timeline > 1 and dsn:
        session = new_session(dsn, replication="database")
        with suppress(Error), of_new_primary(), session as opened, answering(opened):
            result = opened.execute(f"TIMELINE_HISTORY {timeline}".encode()).pgresult
            text = (result.get_value(0, 1) or b"").decode(errors="replace") if result and result.ntuples else ""
    if not text and timeline > 1:
        raise refused("history-refused" if dsn else "no-history", what=name)
    return read_history(timeline, text)
