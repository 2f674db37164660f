"""What new sessions of every member show (pg_settings), and whether it is what was asked of the cluster's manager."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psycopg

from walproof.errors import TargetError
from walproof.model.topology import Endpoint
from walproof.targets.sql.connection import connected
from walproof.targets.sql.settings import same_value

_ROWS = (
    "SELECT name, setting, coalesce(unit, '') AS unit, context, pending_restart, coalesce(sourcefile, '') AS file"
    " FROM pg_catalog.pg_show_all_settings() WHERE name = ANY(%s)"
)
Rows = Mapping[str, Mapping[str, Any]]
"""Rows of pg_settings by name."""


class MemberSettings:
    """Settings of the members that `members` names at the time."""

    def __init__(self, members: Callable[[], Mapping[str, Endpoint]]) -> None:
        self._members = members

    def rows(self, member: str, names: Sequence[str]) -> Rows | None:
        """Of one member; None where it is gone or does not answer."""
        endpoint = self._members().get(member)
        if endpoint is None:
            return None
        try:
            with connected(endpoint) as connection:
                rows = connection.execute(_ROWS, ([name.lower() for name in names],)).fetchall()
        except (TargetError, psycopg.Error):
            return None
        return {str(row["name"]): row for row in rows}

    def shown(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        shown = {}
        for member in self._members() if names else ():
            rows = self.rows(member, names)
            if rows is not None:
                shown[member] = {name: str(row["setting"]) for name, row in rows.items()}
        return shown


def in_effect(rows: Rows, wanted: Mapping[str, Any], before: Mapping[str, str]) -> bool:
    """Whether a member shows these values; one that is removed (None) shows again what it was `before`, where known."""
    for name, value in wanted.items():
        row = rows.get(name.lower())
        if row is None:
            return False
        if value is not None and not same_value(_conf(value), row["setting"], row["unit"]):
            return False
        if value is None and before.get(name, row["setting"]) != row["setting"]:
            return False
    return True


def _conf(value: Any) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else str(value)
