"""Which lost rows name, by a foreign key, a row that on the new primary is not the lost one. Pure.

Such a row would be put under the other one, so it is in conflict too, and so are those that name it."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from walproof.salvaging.changes import NOT_READ, Change, ForeignKey, Row, TableLoss

Places = tuple[int, ...]
"""Of a foreign key's columns among those of a table: () where their values are not known, which may be any then."""


def values(row: Row, places: Sequence[int]) -> Row:
    """What the row has there."""
    return tuple(row[place] for place in places)


@dataclass(slots=True)
class _Link:
    """A foreign key between two tables that lost rows; `is_unknown`: it names a column of which no value is known: a
    generated one, or another one of that name on the new primary; `waiting`: rows that name, by what, as places in the
    changes."""

    key: ForeignKey
    named: TableLoss
    at: Places
    naming: TableLoss
    by: Places
    is_unknown: bool
    waiting: dict[Row, list[int]] | None = None

    def those_that_name(self) -> dict[Row, list[int]]:
        """None was put there that is there already."""
        if self.waiting is None:
            self.waiting = defaultdict(list)
            for place, one in enumerate(self.naming.changes):
                if one.state not in ("there", NOT_READ) and (wanted := self.names(one)) is not None:
                    self.waiting[wanted].append(place)
        return self.waiting

    def names(self, one: Change) -> Row | None:
        """By what the change makes a row name another; None where it named the same at the fork, or has a NULL."""
        if one.new is None or None in (wanted := values(one.new, self.by)):
            return None
        return None if self.by and one.old and values(one.old, self.by) == wanted else wanted

    def note_named(self) -> None:
        """Tell the named table of the key, and of what rows in the SQL name by it."""
        in_sql = [one for one in self.naming.changes if one.new and one.is_in_sql]
        wanted = {names for one in in_sql if one.state != "conflict" and (names := self.names(one)) is not None}
        self.named.followed += [self.key] if in_sql else []
        for place, one in enumerate(self.named.changes):
            if one.new and values(one.new, self.at) in wanted:
                self.named.named[place] = self.named.named.get(place, True) and self.key.is_deferrable


def _links(losses: Sequence[TableLoss]) -> Iterator[_Link]:
    for named in losses:
        for key in dict.fromkeys((*named.table.references, *named.table.old_references)):
            pairs = [pair for pair in key.pairs if pair[2] == "=" and pair[3] not in key.loose]  # a PERIOD is not
            equal = [(own, theirs) for own, _, _, theirs in pairs]
            for naming in losses:
                if key.oid in (naming.table.oid, *naming.table.above):
                    tables = (named.table.columns, naming.table.columns)
                    is_known = all(one in columns for pair in equal for one, columns in zip(pair, tables, strict=True))
                    at, by = (
                        tuple(columns.index(pair[side]) for pair in equal) if is_known else ()
                        for side, columns in enumerate(tables)
                    )
                    known = {*named.table.columns} - named.table.renumbered
                    yield _Link(key, named, at, naming, by, any(own not in known for own, *_ in key.pairs))


def _is_the_lost_one(one: Change, at: Places) -> bool:
    """Whether the new primary's row of these values is the one that was lost, once the SQL was run.

    One that has kept them since the fork is what any other row of then would name by them.
    """
    if one.kind == "update" and one.old and one.new and values(one.old, at) == values(one.new, at):
        return one.state != "conflict" or (one.now is not None and values(one.now, at) == values(one.new, at))
    if one.state == "there":  # but one that was inserted on both sides has its values alone in common
        return not one.is_since
    return one.kind == "delete" or (one.state in ("clean", "unsure") and one.is_in_sql)


def _other(link: _Link, one: Change) -> Iterator[tuple[_Link, Row]]:
    """By what the change is named, where that is not the lost row."""
    if (row := one.new or one.old) and not _is_the_lost_one(one, link.at):
        yield link, values(row, link.at)


def _not_read(links: Sequence[_Link]) -> Iterator[tuple[_Link, Row]]:
    """What may name a lost row that was not read, or by what is not known: no row that was read, in no partition of the
    table, is named so."""
    for link in links:
        if link.named.unread or not link.named.is_read or link.is_unknown:
            same = [one for one in links if one.naming is link.naming and one.by == link.by]
            leaves = [one for one in same if one.named.table.root == link.named.table.root and not one.is_unknown]
            read = {values(row.new, one.at) for one in leaves for row in one.named.changes if row.new}
            yield from [(link, wanted) for wanted in link.those_that_name() if wanted not in read or not wanted]


def leave_named(losses: Sequence[TableLoss]) -> None:
    """Mark what would be put under another row, and note it; `followed` tells by which keys the rest names a table."""
    links, left = [*_links(losses)], Counter[tuple[str, str]]()
    for loss in losses:  # more may be left than when it was looked at before
        loss.followed, loss.named = [], {}
    todo = [*_not_read(links)]
    todo += [what for link in links for one in link.named.changes for what in _other(link, one)]
    while todo:
        link, wanted = todo.pop()
        for place in link.those_that_name().pop(wanted, ()):
            one = link.naming.changes[place]
            link.naming.changes[place] = changed = replace(one, state="conflict", is_left=True)
            left[link.naming.name, link.named.name] += not one.is_left
            todo += [what for more in links if more.named is link.naming for what in _other(more, changed)]
    for link in links:
        link.note_named()
        if count := left.pop((link.naming.name, link.named.name), 0):
            link.naming.notes.append(
                f"in conflict too, and in no SQL, as they name by a foreign key a row of {link.named.name} which on the"
                f" new primary is not the lost one, or was not read or compared: {count:,}"
            )
