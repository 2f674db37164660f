"""Where two servers' timelines part, which transactions committed after that, and what they wrote. Pure.

Records come one by one; kept are lost transactions and those still open, never all records."""

import struct
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Container
from dataclasses import dataclass, field

from walproof.model.units import lsn_text
from walproof.salvaging.row_trails import End, Trails
from walproof.salvaging.wal_records import Manager, Record, Relation

_FIRST_USER_NODE, _OWNERS = 16384, (1664, 0, 1214)
"""What no catalog has until it is rewritten; pg_shdepend, which all databases share: DDL of any one writes there."""
_INSERT, _DELETE, _UPDATE, _HOT_UPDATE, _LOCK, _INPLACE, _MULTI_INSERT = 0x00, 0x10, 0x20, 0x40, 0x60, 0x70, 0x50
_ON_NEW_PAGE = 0x80
"""What a record of Heap does, and the last of Heap2; of that, whether its rows are all of a page (heapam_xlog.h)."""
_TO_ANOTHER_PARTITION, _NEVER_THERE, _OTHER_KEY = 0x10, 0x08, 0x10
"""XLH_DELETE_IS_PARTITION_MOVE and XLH_DELETE_IS_SUPER (ON CONFLICT has taken back its INSERT), flags of a DELETE;
XLHL_KEYS_UPDATED, an infobit of an UPDATE."""
_WITHIN_A_MOVE = 1 << 16
"""Bytes from where reading begins: an INSERT there may belong to a DELETE that was not read."""
_COMMIT, _PREPARE, _ABORT, _COMMIT_PREPARED, _ABORT_PREPARED = 0x00, 0x10, 0x20, 0x30, 0x40
_HAS_MORE = 0x80
"""What a record of Transaction does, and whether what it has besides its time is told (xact.h)."""
_DATABASE, _SUBTRANSACTIONS, _FILES, _MESSAGES, _PREPARED, _STATISTICS = 1, 2, 4, 8, 16, 256
_SHUTDOWN, _ONLINE, _PAGES, _CUT_OFF = 0x00, 0x10, 0xB0, 0xD0
"""Of XLOG: the two checkpoints, whole pages, and a record that came in the place of one that a crash had cut off
(pg_control.h)."""
_DATABASE_MOVED = "a database was moved to another tablespace: rows of it written before are not seen"
_RUNNING, _CREATED, _TRUNCATED, _MAIN, _INIT = 0x10, 0x10, 0x20, 0, 3
"""Of Standby: transactions that run; of Storage: a file was made or cut off, and which of a relation's: WAL tells of no
other one of an unlogged relation than that from which a crash makes it anew."""
_ITEM, _NUMBER, _TIME = struct.Struct("=4xHBB"), struct.Struct("=I"), struct.Struct("=q")
_NEW_ITEM, _MOST_ITEMS = struct.Struct("=12xH"), 291
"""Of an UPDATE, the item of the new version; how many a page has at most (MaxHeapTuplesPerPage)."""
_YEAR_2000, _YEAR_10000 = 946684800.0, 253402300800.0
"""Seconds since 1970: PostgreSQL counts its microseconds from the first; datetime knows none from the second on."""


def precedes(xid: int, other: int) -> bool:
    """Whether a transaction id is before another: they go round at 2^32 (TransactionIdPrecedes)."""
    return (xid - other) % (1 << 32) >= 1 << 31


@dataclass(slots=True)
class _Written:
    """What a transaction wrote: blocks, each with the items it inserted there as bits, and the versions it ended."""

    blocks: dict[tuple[Relation, int], int] = field(default_factory=dict)
    ends: list[End] = field(default_factory=list)


@dataclass(slots=True)
class LostWal:
    """What WAL says about the lost part. Times in seconds since the epoch, positions in bytes; `redo`: where replaying
    begins; `times`: of the first and last commit; `undecided`: why there may be more, a sentence each.

    `blocks` and `ended`: of relations, blocks written and how often versions at a place (block, item) were ended;
    `trails`: which row each place of a table holds.
    `moved`: transactions that moved a row to another partition; `went_from`, `came_to`: relations in which an UPDATE
    took a row from a key or the partition, and brought one to it; `wrote`: those that wrote to such a set of relations;
    `top`: of subtransactions that of their top level; `ended_first`: which one ended the first version at a place;
    `catalogs`: databases and file nodes, where VACUUM FULL has given a catalog another one.
    `dropped`: files that transactions removed at their end, of tables that were dropped, rewritten or truncated.
    `created`: files of new, rewritten and truncated tables that lost transactions made, before the fork or after it;
    `of_whom`: made before it, and no one tells by whom, or by one that was prepared at it and may be on both sides;
    `made_by`: of any file that was made, by which transaction.
    `prepared_at_fork`: prepared before the fork and ended after it, with subtransactions: what the new primary has of
    them was committed after the fork there too (what is never ended holds its locks: nothing lost met its rows).
    `on_both`: of them, committed there and here: not lost, and as if both had done so before the fork.
    `held`: prepared on the new primary; `prepared_before`, `rolled_back_before`: of them, committed and rolled back
    after the fork: not lost, only not ended there; `prepared` after the fork, and neither committed nor rolled back:
    their names.
    `tablespaces`: made in what is replayed, with their places. `crashed_at`: where the old primary came back after it
    had ended, for the first time after the fork: after a crash it wrote over what had not been flushed; 0 for nowhere.
    Of transactions from `known_from` on every record was read, and none from `next_xid` on had written at the fork.
    """

    fork: int
    major: int = 18
    redo: int = 0
    held: Container[int] = ()
    on_both: Container[int] = ()
    end: int = 0
    undecided: list[str] = field(default_factory=list)
    commits: int = 0
    subtransactions: int = 0
    times: tuple[float, float] | None = None
    xids: set[int] = field(default_factory=set)
    blocks: defaultdict[Relation, set[int]] = field(default_factory=lambda: defaultdict(set))
    ended: defaultdict[Relation, Counter[tuple[int, int]]] = field(default_factory=lambda: defaultdict(Counter))
    trails: Trails = field(default_factory=Trails)
    moved: set[int] = field(default_factory=set)
    went_from: set[Relation] = field(default_factory=set)
    came_to: set[Relation] = field(default_factory=set)
    wrote: defaultdict[frozenset[Relation], list[int]] = field(default_factory=lambda: defaultdict(list))
    top: dict[int, int] = field(default_factory=dict)
    ended_first: defaultdict[Relation, dict[tuple[int, int], int]] = field(default_factory=lambda: defaultdict(dict))
    catalogs: set[tuple[int, int]] = field(default_factory=set)
    prepared: dict[int, str] = field(default_factory=dict)
    prepared_before: set[int] = field(default_factory=set)
    rolled_back_before: set[int] = field(default_factory=set)
    prepared_at_fork: set[int] = field(default_factory=set)
    known_from: int | None = None
    next_xid: int | None = None
    created: set[Relation] = field(default_factory=set)
    of_whom: set[Relation] = field(default_factory=set)
    made_by: dict[Relation, int] = field(default_factory=dict)
    dropped: set[Relation] = field(default_factory=set)
    tablespaces: list[str] = field(default_factory=list)
    crashed_at: int = 0
    _begin: int = 0
    _open: defaultdict[int, _Written] = field(default_factory=lambda: defaultdict(_Written))
    """By transaction."""
    _making: defaultdict[int, set[Relation]] = field(default_factory=lambda: defaultdict(set))
    """By transaction: files that it made before the fork."""
    _last: defaultdict[Relation, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    """Of blocks, where the record is that wrote a row there last."""
    _cut: defaultdict[Relation, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    """Where records are that cut a file off, and to how many blocks: of those that cut off no less later, the last."""
    _files: dict[Relation, Relation] = field(default_factory=dict)
    """One object of each, for all records."""

    @property
    def all_blocks_known(self) -> bool:
        """Whether every block that a lost transaction wrote to is among `blocks`."""
        return self.known_from is not None and not any(precedes(xid, self.known_from) for xid in self.xids)

    def knows(self, relation: Relation) -> bool:
        """Whether that file was there at the fork, and every block of it that a lost transaction wrote to is known: of
        one that is made anew pages are logged whole."""
        return self.all_blocks_known and self.was_there(relation)

    def was_there(self, relation: Relation) -> bool:
        """Whether that file is known to have been there at the fork."""
        return relation not in self.created and relation not in self.of_whom

    @property
    def databases(self) -> set[int]:
        """Those that a lost transaction wrote to, or made files in."""
        return {relation[1] for relation in self.created.union(*self.wrote)} - {0}

    def last(self, relation: Relation) -> dict[int, int]:
        """Of its blocks, where the record is that wrote a row there last, but of those that were cut off after it."""
        cut, last = self._cut.get(relation, []), self._last.get(relation, {})
        most = [*(blocks for _, blocks in cut), None]
        ends = {block: most[bisect(cut, (at, 0))] for block, at in last.items()}
        return {block: at for block, at in last.items() if (end := ends[block]) is None or block < end}

    def ddl(self, database: int) -> int:
        """How many lost transactions changed its catalogs; 0: those that all databases share."""

        def is_catalog(of: Relation) -> bool:
            is_one = of[2] < _FIRST_USER_NODE or not database  # all databases share nothing else
            return of[1] == database and of != _OWNERS and (is_one or of[1:] in self.catalogs)

        return sum(len(xids) for wrote, xids in self.wrote.items() if any(map(is_catalog, wrote)))

    def add(self, record: Record) -> None:
        """The next record; ValueError for one that no PostgreSQL writes like that, whose checksum says otherwise."""
        try:
            self._add(record, lost=record.lsn >= self.fork)
        except struct.error:
            raise ValueError(f"the record at {lsn_text(record.lsn)} is too short for what it says") from None
        self.end = record.end

    def _add(self, record: Record, *, lost: bool) -> None:
        if record.xid and not lost:
            self._next(record.xid + 1)
        match record.manager:
            case Manager.TRANSACTION:
                self._transaction(record, lost=lost)
            case Manager.HEAP | Manager.HEAP2 | Manager.SEQUENCE if record.xid and record.blocks:
                self._written(record)
            case Manager.STANDBY | Manager.XLOG:
                self._counted(record, lost=lost)
            case Manager.STORAGE | Manager.DATABASE | Manager.TABLESPACE:
                self._made(record, lost=lost)

    def _counted(self, record: Record, *, lost: bool) -> None:
        """One record of Standby or XLOG; it may say the next transaction id."""
        following = None
        if record.manager == Manager.STANDBY:
            if record.kind == _RUNNING:
                (following,) = _NUMBER.unpack_from(record.data, 12)
                self.known_from = following if self.known_from is None else self.known_from
        elif record.kind in (_SHUTDOWN, _ONLINE):
            (following,) = _NUMBER.unpack_from(record.data, 24)  # a checkpoint's is from when it began
        elif record.kind == _PAGES:
            for relation, block in record.blocks:  # of a table that is rewritten
                self._last[relation][block] = record.lsn
        if record.manager == Manager.XLOG and lost and record.kind in (_SHUTDOWN, _CUT_OFF):
            self.crashed_at = self.crashed_at or record.lsn
        if following is not None and not lost:
            self._next(following)

    def _made(self, record: Record, *, lost: bool) -> None:
        """One record of Storage, Database or Tablespace."""
        data = record.data
        if record.manager == Manager.STORAGE:
            if record.kind == _CREATED:
                tablespace, database, node, fork = struct.unpack_from("=IIII", data)
                if database and fork in (_MAIN, _INIT):
                    made = self.created if lost else self._making[record.xid] if record.xid else self.of_whom
                    made.add((tablespace, database, node))
                    self.made_by[tablespace, database, node] = record.xid
            elif record.kind == _TRUNCATED:
                blocks, tablespace, database, node, forks = struct.unpack_from("=IIIII", data)
                relation = tablespace, database, node
                if forks & 1:
                    cut = self._cut[relation]
                    while cut and cut[-1][1] >= blocks:
                        cut.pop()
                    cut.append((record.lsn, blocks))
        elif record.manager == Manager.DATABASE:
            if lost and record.kind == 0 and data[:4] == data[8:12]:
                self.undecided.append(_DATABASE_MOVED)
        elif record.kind == 0 and record.lsn >= self.redo:
            path = data[4:].partition(b"\0")[0].decode(errors="replace")
            self.tablespaces.append(f'{_NUMBER.unpack_from(data)[0]} "{path}"')

    def _written(self, record: Record) -> None:
        """One record of Heap, Heap2 or Sequence."""
        kind = record.kind & 0x70 if record.manager == Manager.HEAP else None
        if kind in (_LOCK, _INPLACE):
            return
        self._begin = self._begin or record.lsn
        is_first, mine = record.xid not in self._open, self._open[record.xid]
        if is_first and kind == _INSERT and self._may_be_cut(record):
            self.trails.begun.add(record.xid)
        record = record._replace(blocks=tuple((self._files.setdefault(*[file] * 2), at) for file, at in record.blocks))
        for at in record.blocks:
            mine.blocks.setdefault(at, 0)
        is_many = record.manager == Manager.HEAP2 and record.kind & 0x70 == _MULTI_INSERT
        if kind is not None or is_many:
            for relation, block in record.blocks:
                self._last[relation][block] = record.lsn
        if kind == _INSERT or is_many:
            self._inserted(record, mine, is_many=is_many)
        elif kind in (_DELETE, _UPDATE, _HOT_UPDATE):
            self._ended_there(record, mine, is_delete=kind == _DELETE)

    def _may_be_cut(self, record: Record) -> bool:
        """Whether its transaction may have written what belongs to it just before the WAL that is read."""
        began_before = self.known_from is None or precedes(record.xid, self.known_from)
        return began_before and record.lsn < self._begin + _WITHIN_A_MOVE

    def _inserted(self, record: Record, mine: _Written, *, is_many: bool) -> None:
        """One record of Heap or Heap2 that inserted rows."""
        relation, block = record.blocks[0]
        count = self._item(record, *struct.unpack_from("=2xH", record.data)) if is_many else 1
        if is_many and record.kind & _ON_NEW_PAGE:
            mine.blocks[relation, block] |= ((1 << count) - 1) << 1
            return
        items = [self._item(record, one) for one in struct.unpack_from(f"={count}H", record.data, 4 * is_many)]
        for item in items:
            mine.blocks[relation, block] |= 1 << item
        if not is_many and record.xid in self.moved:
            self.came_to.add(relation)
            mine.ends.append(End(record.lsn, record.xid, relation, None, (block, items[0])))

    def _ended_there(self, record: Record, mine: _Written, *, is_delete: bool) -> None:
        """One record of Heap that ended a row's version: a DELETE or an UPDATE."""
        item, bits, flags = _ITEM.unpack_from(record.data)
        relation, block = record.blocks[-1]
        if is_delete and flags & _NEVER_THERE:
            return
        is_moved, new = is_delete and bool(flags & _TO_ANOTHER_PARTITION), None
        if is_moved:
            self.moved.add(record.xid)
        if not is_delete:
            new = record.blocks[0][1], self._item(record, *_NEW_ITEM.unpack_from(record.data))
        if is_moved or (not is_delete and bits & _OTHER_KEY):
            self.went_from.add(relation)
        if not is_delete and bits & _OTHER_KEY:
            self.came_to.add(relation)
        mine.ends.append(End(record.lsn, record.xid, relation, (block, item), new, is_moved=is_moved))

    def _item(self, record: Record, item: int) -> int:
        if not 0 < item <= _MOST_ITEMS:
            raise ValueError(f"the record at {lsn_text(record.lsn)} is of no row")
        return item

    def _next(self, xid: int) -> None:
        if self.next_xid is None or precedes(self.next_xid, xid):
            self.next_xid = xid % (1 << 32)

    def close(self, until: int) -> None:
        """The end of a span, which must reach `until`."""
        if self.end < until:
            self.undecided.append(f"the WAL was read up to {lsn_text(self.end)}, and needed up to {lsn_text(until)}")

    def _transaction(self, record: Record, *, lost: bool) -> None:
        kind = record.kind & 0x70
        if kind not in (_COMMIT, _ABORT, _COMMIT_PREPARED, _ABORT_PREPARED):
            if kind == _PREPARE and lost:
                self.prepared[record.xid] = self._gid(record.data)
            return
        at, subxacts, prepared, files = self._ended(record)
        self.dropped.update(files)
        xid = prepared or record.xid
        written = [self._open.pop(one) for one in (xid, *subxacts) if one in self._open]
        made = set[Relation]().union(*(self._making.pop(one, ()) for one in (xid, *subxacts)))
        is_at_fork = lost and prepared and self.prepared.pop(xid, None) is None
        if not lost or (is_at_fork and self._is_there(xid, subxacts, kind)) or kind in (_ABORT, _ABORT_PREPARED):
            return
        (self.of_whom if xid in self.prepared_at_fork else self.created).update(made)
        self.commits += 1
        self.subtransactions += len(subxacts)
        self.xids.update((xid, *subxacts))
        self.times = (min(self.times[0], at), max(self.times[1], at)) if self.times else (at, at)
        self.wrote[frozenset(relation for one in written for relation, _ in one.blocks)].append(xid)
        self.top.update(dict.fromkeys(subxacts, xid))
        for (relation, block), items in (at for one in written for at in one.blocks.items()):
            if relation[2] >= _FIRST_USER_NODE:
                self.blocks[relation].add(block)
                self.trails.insert(relation, block, items)
        for end in sorted((end for one in written for end in one.ends), key=lambda one: one.lsn):
            if end.relation[2] >= _FIRST_USER_NODE:
                self.trails.follow(end)
            if end.old:
                self.ended[end.relation][end.old] += 1
                self.ended_first[end.relation].setdefault(end.old, xid)

    def _is_there(self, xid: int, subxacts: tuple[int, ...], kind: int) -> bool:
        """Whether the new primary has what was prepared at the fork and is ended here: held still, or committed too."""
        if kind == _COMMIT_PREPARED and xid in self.on_both:
            return True
        self.prepared_at_fork.update((xid, *subxacts))
        if xid in self.held:
            (self.prepared_before if kind == _COMMIT_PREPARED else self.rolled_back_before).add(xid)
        return xid in self.held

    def _gid(self, data: bytes) -> str:
        """The name of a transaction that is prepared (xl_xact_prepare)."""
        at = 54 if self.major >= 15 else 46
        (length,) = struct.unpack_from("=H", data, at)
        return data[at + 18 : at + 18 + length].rstrip(b"\0").decode(errors="backslashreplace")

    def _ended(self, record: Record) -> tuple[float, tuple[int, ...], int, set[Relation]]:
        """When a transaction ended, its subtransactions, of one that was prepared its id, and the files that it removed
        (ParseCommitRecord)."""
        data, at = record.data, _TIME.size
        ended, has = _TIME.unpack_from(data)[0] / 1e6 + _YEAR_2000, 0
        if not 0 <= ended < _YEAR_10000:
            raise ValueError(f"the record at {lsn_text(record.lsn)} is of no time")
        if record.kind & _HAS_MORE:
            (has,), at = _NUMBER.unpack_from(data, at), at + 4
        at += 8 if has & _DATABASE else 0
        subxacts, files = tuple[int, ...](), set[Relation]()
        if has & _SUBTRANSACTIONS:
            (count,) = _NUMBER.unpack_from(data, at)
            subxacts = struct.unpack_from(f"={count}I", data, at + 4)
            at += 4 + 4 * count
        for flag, length in ((_FILES, 12), (_STATISTICS, 16 if self.major >= 18 else 12), (_MESSAGES, 16)):
            if has & flag:
                (count,), at = _NUMBER.unpack_from(data, at), at + 4
                if flag == _FILES:
                    files = {struct.unpack_from("=III", data, at + length * place) for place in range(count)}
                at += length * count
        return ended, subxacts, _NUMBER.unpack_from(data, at)[0] if has & _PREPARED else 0, files
