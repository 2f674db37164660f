"""What was lost of a table's rows: which versions are one change, and what the new primary's row makes of it. Pure."""

from collections.abc import Collection, Container, Sequence
from dataclasses import dataclass, field, replace

from walproof.salvaging.row_trails import AtFork
from walproof.salvaging.wal_records import Relation

Row = tuple[str | None, ...]
Origin = AtFork | tuple[()]
"""Which row of the fork a version is of; () where that is not known."""
NOT_READ = "not read"
STATES = ("clean", "conflict", "there", "unsure", "not compared", NOT_READ)
OTHER_KEY = "the new primary's table has another key: no old version of a row and new one are paired"
REWRITTEN = (
    "rewritten or truncated after the fork (VACUUM FULL, CLUSTER, TRUNCATE, ALTER TABLE):"
    " rows that it held at the fork may be among the inserted, or missing among the deleted"
)


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """A foreign key by the table that it belongs to; `pairs`: the named table's column, the operator's schema and name,
    and the own column. All are names, to be quoted. `is_builtin`: the operators and the columns' types are PostgreSQL's
    own, for which no user makes another of that name, or a cast. `loose`: own columns of which equal values may be
    written in another way than the named table's. `clears`: it is ON UPDATE SET NULL or SET DEFAULT."""

    schema: str
    table: str
    pairs: tuple[tuple[str, str, str, str], ...]
    oid: int = 0
    is_builtin: bool = False
    loose: tuple[str, ...] = ()
    is_deferrable: bool = False
    clears: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A heap table, or the leaf of a partitioned one whose `root` is another, as `tables` of queries.sql selects it.

    `why_not`: why its rows are not read; `columns`: stored, and can be written; `key`: places among them of its key's,
    () without one; `is_key_builtin`: their types are PostgreSQL's own, with an = that an index serves; `is_deferrable`:
    a unique constraint of it is, so INSERT takes no ON CONFLICT; `has_other_unique`: besides its key's; `uniques`: of
    these the columns' places, where each value is compared as its key's; `references`: the foreign keys that name it,
    `old_references` those that did so on the old primary;
    `above`: the tables that it is a partition of; `warnings`: what SQL does there besides. `is_new_file`: nothing tells
    that its file was there at the fork: lost work may have rewritten it. `unread`: why it cannot be read what it has;
    its name is then for people alone. `attnums`: of `columns`, () where not known: the new
    primary's column of a name is the same one where it has the same attnum. `renumbered`: those where it has another.
    `has_no_place`: it has no such table, or one of other columns, or as a partition of others. `fires`: triggers.
    """

    relation: Relation
    toast: tuple[Relation, str] | None
    why_not: str
    oid: int
    schema: str
    name: str
    columns: tuple[str, ...] = ()
    key: tuple[int, ...] = ()
    root: int = 0
    is_key_builtin: bool = False
    is_deferrable: bool = False
    has_other_unique: bool = False
    uniques: tuple[tuple[int, ...], ...] = ()
    references: tuple[ForeignKey, ...] = ()
    old_references: tuple[ForeignKey, ...] = ()
    above: tuple[int, ...] = ()
    warnings: tuple[str, ...] = ()
    is_new_file: bool = False
    unread: str = ""
    attnums: tuple[int, ...] = ()
    renumbered: frozenset[str] = frozenset()
    has_no_place: bool = False
    fires: bool = False

    @property
    def key_columns(self) -> tuple[str, ...]:
        return tuple(self.columns[place] for place in self.key)

    @property
    def numbered(self) -> dict[str, int | None]:
        """The attnum of each column, None where it is not known."""
        return dict(zip(self.columns, self.attnums or [None] * len(self.columns), strict=True))


@dataclass(frozen=True, slots=True)
class Change:
    """One lost change of a row: insert, update, delete, or NOT_READ; `now` is the new primary's row of that key.

    `state`: of STATES; conflict: it was changed there too; there: it holds the lost state already; unsure: an update
    wrote it, and what was before is gone: inserted after the fork, or deleted on the new primary; NOT_READ: of its two
    versions the other one cannot be read, so that nothing tells what became of it. `is_left`: in conflict though nobody
    wrote the row there, so that no condition of the SQL would tell: it is in none.
    `is_since`: the new primary wrote its row since the fork. `came`, `went`: which row the new version is of, and the
    old one, where that has another key too (`key_changes`). `by`: the transactions that wrote its versions, by their
    top level; `is_part`: the SQL does not have all that one of them wrote (`transactions`).
    """

    kind: str
    new: Row | None
    old: Row | None
    now: Row | None = None
    state: str = "not compared"
    is_left: bool = False
    is_since: bool = False
    came: Origin | None = None
    went: Origin | None = None
    by: tuple[int, ...] = ()
    is_part: bool = False

    @property
    def is_in_sql(self) -> bool:
        """Not what is there, was not read or is left, nor an update of which nothing tells which row it was."""
        return (
            self.state not in ("there", NOT_READ)
            and not self.is_left
            and (self.kind != "update" or self.old is not None)
        )


@dataclass(frozen=True, slots=True)
class Unread:
    """Versions that cannot be read, by their keys; `is_any`: of one not even that, so it may be any row's."""

    keys: Container[Row] = ()
    is_any: bool = False

    def __contains__(self, of: Row) -> bool:
        return self.is_any or of in self.keys


@dataclass(frozen=True, slots=True)
class Untold:
    """What reading has left open: final versions and those at the fork that cannot be read; `deleted`: keys of versions
    at the fork that were read and that a DELETE ended, so that no other version follows one."""

    final: Unread = Unread()
    at_fork: Unread = Unread()
    deleted: Container[Row] = ()


NOTHING = Untold()


@dataclass(slots=True)
class TableLoss:
    """What was lost of one table; `notes` say what cannot be told, `undecided` that there may be more.

    `no_sql`: why no SQL of it is written, "" where it is.
    `unread`: versions that cannot be read; `is_read`: whether it was read to its end, or nothing of it can be lost;
    `followed`: foreign keys by which rows in the SQL name it. `named`: places in the changes of rows that are named so,
    and whether each such key is deferrable. `outside`: transactions that wrote
    what is no change of these.
    """

    table: Table
    changes: list[Change] = field(default_factory=list)
    versions_gone: int = 0
    unkeyed_old: int = 0
    unread: int = 0
    is_read: bool = True
    no_sql: str = ""
    notes: list[str] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)
    followed: list[ForeignKey] = field(default_factory=list)
    named: dict[int, bool] = field(default_factory=dict)
    outside: set[int] = field(default_factory=set)

    @property
    def name(self) -> str:
        """The table's name with its schema, as a reader is told it: not quoted."""
        return f"{self.table.schema}.{self.table.name}"

    def in_no_sql(self, *, is_said: bool) -> dict[str, int]:
        """How many changes or versions were lost and are in no SQL, by why; `is_said`: there is SQL of this table."""
        updates = sum(one.kind == "update" and one.old is None for one in self.changes)
        unsaid = 0 if is_said else sum(one.is_in_sql for one in self.changes)
        unread = max(self.unread, sum(one.state == NOT_READ for one in self.changes))
        found = {"without a key": max(self.unkeyed_old, updates), NOT_READ: unread, "no SQL can say it": unsaid}
        return {why: count for why, count in found.items() if count}


def is_alike(table: Table, other: Table) -> bool:
    """Whether it has the same name, columns, and place of partitions there."""
    sides = ((one.schema, one.name, one.numbered, one.root, one.above) for one in (table, other))
    return next(sides) == next(sides)


def renumbered(table: Table, other: Table) -> frozenset[str]:
    """Names that both tables have, each for a column of another attnum."""
    attnums = other.numbered
    return frozenset(name for name, attnum in table.numbered.items() if attnum and attnums.get(name, attnum) != attnum)


def key(table: Table, row: Row) -> Row:
    """The values of the row's key."""
    return tuple(row[place] for place in table.key)


def changes(
    table: Table, made: Sequence[Row], replaced: Sequence[Row], old: Sequence[Row], untold: Untold = NOTHING
) -> list[Change]:
    """Final versions, inserted and written by an UPDATE, and old ones of one key are one change; without a key no final
    version is paired with an old one.

    An old version without a final one was deleted where each final one was read, or where a DELETE ended it and none
    that was not read has its key: else nothing is told.
    """
    final, at_fork = untold.final, untold.at_fork
    if not table.key:
        return [Change("insert", row, None) for row in made] + [Change("update", row, None) for row in replaced]
    before, lost = {key(table, row): row for row in old}, list[Change]()
    for rows, state in ((made, "unsure" if at_fork.is_any else "not compared"), (replaced, "unsure")):
        for row in rows:
            was = before.pop(key(table, row), None)
            if was is None and key(table, row) in at_fork.keys:
                lost.append(Change(NOT_READ, row, None, state=NOT_READ))
            elif was is None:
                lost.append(Change("insert", row, None, state=state))
            elif was != row:
                lost.append(Change("update", row, was))
    for of, row in before.items():
        is_told = final == Unread() or (of in untold.deleted and of not in final)
        lost.append(Change("delete", None, row) if is_told else Change(NOT_READ, None, row, state=NOT_READ))
    return lost


def _is_gone(change: Change) -> bool:
    return change.kind == "delete" and change.state != "there"


def leave_untold(losses: Collection[TableLoss]) -> None:
    """Where a partition was not read whole, a row that is gone from another one may have moved there."""
    blind = {loss.table.root for loss in losses if loss.unread or not loss.is_read or loss.table.why_not}
    for loss in losses:
        if loss.table.root in blind - {0, loss.table.oid} and any(map(_is_gone, loss.changes)):
            loss.changes = [
                replace(one, kind=NOT_READ, state=NOT_READ) if _is_gone(one) else one for one in loss.changes
            ]
            loss.undecided.append("rows that it held may be in a partition that was not read")


def judged(change: Change, now: Row | None, *, unchanged: bool) -> Change:
    """The change beside the new primary's row; `unchanged`: it has not written that row since the fork."""
    kind, old = change.kind, change.old
    if now is None and change.state in ("unsure", NOT_READ):
        return change
    if kind in ("insert", NOT_READ) and now is not None and change.new not in (None, now) and unchanged:
        kind, old = "update", now  # the old primary has pruned the version at the fork
    is_at_fork = now == old and (now is None or unchanged)  # it may have been written, and have its values again
    state = "there" if now == change.new else "clean" if is_at_fork else "conflict"
    state = NOT_READ if kind == NOT_READ and state != "there" else state
    return Change(kind, change.new, old, now, state, is_since=now is not None and not unchanged)
