"""Which cluster a Patroni is of: by PostgreSQL's system identifier, by its scope, and by the members that it lists.

A copy (a standby cluster, what a backup was restored to) has the identifier and may have the scope of its original, but
members of its own: those that read one DCS list the same ones in /cluster."""

import re
import threading
from collections.abc import Iterable
from typing import Any, TypeAlias

from walproof.machine.untrusted import one_line

Member: TypeAlias = tuple[str, str]
"""A member as /cluster lists it: its name, and the URL of its Patroni."""
_MOST = 300


class KnownCluster:
    """The cluster that is meant, as far as it was told: the first to tell which one it is of is believed.

    Members are all that it was ever seen to list: two that are down by turns are never listed at once.
    """

    def __init__(self) -> None:
        self.system, self.scope = "", ""
        """The system identifier of PostgreSQL and the scope of Patroni, "" until a member has told them."""
        self.members: tuple[Member, ...] = ()
        """The newest last."""
        self._telling = threading.Lock()

    def stranger(self, status: object, cluster: object, *, may_be_untold: bool = False, to_change: bool = False) -> str:
        """Why it is not known to be of this one, whose /patroni and /cluster tell this; "" where it is.

        `may_be_untold`: which cluster it is of. `to_change`: its members must be told, which it cannot without its DCS.
        """
        (system, scope), listed = told(status), members_in(cluster)
        with self._telling:
            for one, kept in ((system, self.system), (scope, self.scope)):
                if one and kept and one != kept:
                    return f"is of another cluster, {one}, not {kept}"
            if self.system and not system and not may_be_untold:
                return f"does not tell which cluster it is of, and {self.system} is meant"
            if listed and self.members and not {*listed} & {*self.members}:
                return f"is of another cluster, that of {shown(listed)}, not that of {shown(self.members)}"
            if to_change and self.members and not listed:
                return f"lists no members (does its DCS answer?), and the cluster of {shown(self.members)} is meant"
            self.system, self.scope = self.system or system, self.scope or scope
            self.members = (*(one for one in self.members if one not in listed), *listed)[-_MOST:]
        return ""


def told(status: object) -> tuple[str, str]:
    """(system identifier, scope) in an answer of /patroni, "" for each that it does not tell.

    >>> told({"database_system_identifier": "77", "patroni": {"scope": "main"}}), told({"patroni": 1}), told([])
    (('77', 'main'), ('', ''), ('', ''))
    """
    of = status if isinstance(status, dict) else {}
    system, patroni = str(of.get("database_system_identifier")), of.get("patroni")
    scope = patroni.get("scope") if isinstance(patroni, dict) else ""
    return system if system.isdecimal() else "", one_line(str(scope or ""), 200)


def members_in(cluster: object) -> tuple[Member, ...]:
    """The members in an answer of /cluster, without those that have no URL.

    >>> members_in({"members": [{"name": "n1", "api_url": "http://db1:8008/patroni"}, {"name": "n2"}, 3]})
    (('n1', 'http://db1:8008/patroni'),)
    >>> members_in([]), members_in({"members": 1})
    ((), ())
    """
    rows = cluster.get("members") if isinstance(cluster, dict) else ()
    members = [row for row in rows if isinstance(row, dict)][:_MOST] if isinstance(rows, list) else []
    listed = ((one_line(str(row.get("name")), 200), url_of_patroni(row.get("api_url"))) for row in members)
    return tuple(dict.fromkeys(member for member in listed if member[1]))


def listing_of(members: Iterable[Member]) -> dict[str, Any]:
    """What `members_in` reads these of.

    >>> listing_of([("n1", "http://db1:8008/patroni")])
    {'members': [{'name': 'n1', 'api_url': 'http://db1:8008/patroni'}]}
    """
    return {"members": [{"name": name, "api_url": url} for name, url in members]}


def url_of_patroni(url: object) -> str:
    """The URL as Patroni writes it, "" for any other: a member's may be a request to a server of somebody else's.

    >>> url_of_patroni("https://[::1]:8008/patroni"), url_of_patroni("http://127.0.0.1:9000/drop?all=")
    ('https://[::1]:8008/patroni', '')
    """
    text = str(url)
    return text if re.fullmatch(r"https?://[A-Za-z0-9._:\[\]%-]+/patroni", text) else ""


def shown(members: Iterable[Member]) -> str:
    """The members in a sentence; of many the newest three.

    >>> shown([("n1", "http://db1:8008/patroni"), ("n2", "http://db2:8008/patroni")])
    'n1 at db1:8008, n2 at db2:8008'
    """
    texts = [f"{one_line(name, 40)} at {url.split('/')[2]}" for name, url in members]
    return ", ".join([*(["…"] if texts[3:] else []), *texts[-3:]])
