"""What a salvage found, as a tree for programs and as text for people. Pure."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from importlib.resources import files
from typing import Any

from jinja2 import Environment

from walproof.machine.quoting import sql_text
from walproof.machine.untrusted import one_line
from walproof.model.units import lsn_text
from walproof.salvaging.changes import REWRITTEN, STATES, TableLoss
from walproof.salvaging.plan import Plan
from walproof.salvaging.wal import LostWal

Tree = dict[str, Any]
ALL = "it brings every row to what was lost"
_SHOWN = 5
_FILES = files("walproof.salvaging")
KEEP = (_FILES / "keep.txt").read_text("utf-8")


def plan_tree(plan: Plan) -> Tree:
    """What is known before the copy."""
    fork = plan.spans[0] if plan.spans else None
    return {
        "old": str(plan.old.directory),
        "system_identifier": str(plan.old.system),
        "postgresql": plan.old.major,
        "old_timeline": plan.old.timeline,
        "new_timeline": plan.new_timeline,
        "fork": None if fork is None else {"timeline": fork.timeline, "lsn": lsn_text(fork.start)},
        "copied_bytes": plan.copied_bytes,
        "wal_segments": len(plan.wal),
        "undecided": list(plan.elsewhere),
        "notes": [f"{place} of --old is a link: {to} is read, as it is now" for place, to in plan.links.items()],
    }


def loss_tree(
    plan: Plan, lost: LostWal, databases: list[Tree], still_held: Sequence[list[Tree]], notes: list[str]
) -> Tree:
    """All of it; `still_held`: what the new primary holds prepared and the old one committed, and rolled back."""
    first, last = [datetime.fromtimestamp(at, UTC).isoformat(" ") for at in lost.times or ()] or (None, None)
    prepared, rolled_back = still_held
    held = ["COMMIT PREPARED was lost of what the new primary holds prepared: commit that there, then run this again"]
    held = held if prepared else []
    held += (
        ["ROLLBACK PREPARED was lost of what the new primary holds prepared: roll it back there"] if rolled_back else []
    )
    if lost.prepared:
        names = ", ".join(map(sql_text, list(lost.prepared.values())[:_SHOWN]))
        more = f" and {left:,} more" if (left := len(lost.prepared) - _SHOWN) > 0 else ""
        held.append(f"prepared after the fork, neither committed nor rolled back, and not read: {names}{more}")
    failed = [f"--check of {one['database']}: {said}" for one in databases for said in one["check"] or ()]
    known = plan_tree(plan)
    return {
        **known,
        "undecided": [*known["undecided"], *lost.undecided, *held, *failed],
        "wal_read_to": lsn_text(lost.end),
        "wal_written_to": lsn_text(min(lost.end, lost.crashed_at or lost.end)),
        "lost_wal_bytes": max(0, lost.end - lost.fork),
        "lost_transactions": lost.commits,
        "lost_subtransactions": lost.subtransactions,
        "first_commit_at": first,
        "last_commit_at": last,
        "prepared_undecided": len(lost.prepared),
        "prepared_on_new_primary": prepared,
        "rolled_back_on_old_primary_alone": rolled_back,
        "ddl_of_cluster": lost.ddl(0),
        "databases": databases,
        "notes": [*known["notes"], *notes],
    }


def table_tree(loss: TableLoss) -> Tree:
    """What was lost of one table: changes by kind, and by how they stand to the new primary's rows."""
    kinds, states = (Counter(getattr(one, name) for one in loss.changes) for name in ("kind", "state"))
    by_kind = {"inserted": "insert", "updated": "update", "deleted": "delete"}
    return {
        "table": loss.name,
        **{name: kinds[kind] for name, kind in by_kind.items()},
        **{state.replace(" ", "_"): states[state] for state in STATES},
        "versions_not_read": loss.unread,
        "inserted_without_key": 0 if loss.table.key else kinds["insert"],
        "old_versions_without_key": loss.unkeyed_old,
        "versions_no_longer_there": loss.versions_gone,
        "notes": loss.notes,
    }


def brought(database: Tree, *, is_whole: bool) -> str:
    """What its SQL does where --check has nothing to say; `is_whole`: all that was lost is known."""
    tables: list[Tree] = database["tables"]

    def total(*names: str) -> int:
        return sum(int(table[name]) for table in tables for name in names)

    changes = total("inserted", "updated", "deleted") - total("there")
    left = {
        "in conflict with the new primary, and left as they are": total("conflict"),
        "inserted without a key, and not compared": total("inserted_without_key"),
    }
    held = f"{changes - sum(left.values()):,} of {changes:,} changes"
    beside = {**left, "versions no longer there, of which nothing tells": total("versions_no_longer_there")}
    rest = "".join(f"; {what}: {count:,}" for what, count in beside.items() if count)
    is_whole = is_whole and not any(REWRITTEN in table["notes"] for table in tables)
    return f"it brings {held} to what was lost{rest}" if rest or not is_whole else f"{ALL} ({held})"


def text(tree: Tree) -> list[str]:
    """The tree for people, as lines; a name of others makes none of them, nor a statement."""
    here = Environment(trim_blocks=True, lstrip_blocks=True)
    here.filters["sql"] = sql_text
    is_whole = not tree.get("undecided") and not tree.get("notes")
    here.filters["brought"] = partial(brought, is_whole=is_whole)
    template = here.from_string((_FILES / "report.txt.j2").read_text("utf-8"))
    return str(template.render(_one_line_each(tree))).splitlines()


def _one_line_each(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: _one_line_each(value) for name, value in tree.items()}
    if isinstance(tree, list):
        return [_one_line_each(value) for value in tree]
    return one_line(tree) if isinstance(tree, str) else tree
