"""Moves etcd's own leader off the machine of Patroni's leader, so that one machine's failure does not take both.

Without etcd's leader every request waits for an election, Patroni's on the standbys too: one to three seconds. But each
election renews every lease in that etcd (lessor.Promote), those of dead leaders of other clusters too: with consent of
its own, and at most once in ten minutes whoever asks.
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from itertools import count
from urllib.parse import urlsplit

from walproof.errors import TargetError
from walproof.patroni.etcd3 import Etcd3, Fields, Transaction, compare_version, put

MOVED = "/walproof_etcd_leader_moved"
"""A key of the whole etcd that is there for ten minutes after a move."""
_PAUSE_S = 600.0
_BEHIND = 1000
"""How many entries of etcd's log a member may lack to become its leader."""


class EtcdLeader:
    """The leader of one etcd cluster."""

    def __init__(self, etcd: Etcd3, client: Callable[[str], Etcd3] | None = None) -> None:
        """`etcd`: a client that no other thread uses; client: one that asks that URL alone."""
        self._etcd = etcd
        self._client = client or (lambda url: Etcd3(replace(etcd.access, urls=(url,))))
        self._turns = count()

    def leave(self, host: str) -> str:
        """Move it off that host to another, healthy member; the name of that one, "" where there is nothing to do.

        TargetError where etcd does not answer, refuses, or the member asked does not take it.
        """
        members = {int(m["ID"]): m for m in self._etcd.call("/cluster/member/list", {}).get("members", ())}
        status = self._etcd.call("/maintenance/status", {})
        leader = int(status.get("leader", 0))
        if leader not in members or host not in _hosts(members[leader]) or self._etcd.prefix(MOVED):
            return ""
        others = [n for n, m in sorted(members.items()) if host not in _hosts(m) and self._healthy(m, status)]
        if not others or not self._first():
            return ""
        to = others[next(self._turns) % len(others)]
        # Only the leader does it; the others answer that they are not.
        self._etcd.call("/maintenance/transfer-leadership", {"targetID": str(to)})
        return str(members[to].get("name", to))

    def _first(self) -> bool:
        """Whether nobody has moved it in the last ten minutes; nobody else will in the next."""
        once = Transaction([compare_version(MOVED, 0)], [put(MOVED, "", self._etcd.grant(_PAUSE_S))])
        return self._etcd.transaction(once)

    def _healthy(self, member: Fields, status: Fields) -> bool:
        """Whether that member itself answers, votes, has no alarm, knows the same leader and nearly its whole log.

        Only addresses that the user named are asked: they get the password.
        """
        for url in {str(one).rstrip("/") for one in member.get("clientURLs", ())} & set(self._etcd.order.urls):
            try:
                with closing(self._client(url)) as etcd:
                    own = etcd.call("/maintenance/status", {})
            except TargetError:
                continue
            behind = int(status.get("raftIndex", 0)) - int(own.get("raftIndex", 0))
            well = not own.get("errors") and not own.get("isLearner")
            return well and own.get("leader") == status.get("leader") and behind < _BEHIND
        return False


def _hosts(member: Fields) -> set[str | None]:
    return {urlsplit(str(url)).hostname for url in member.get("clientURLs", ())}
