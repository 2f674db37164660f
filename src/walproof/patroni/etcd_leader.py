"""Keeps etcd's own leader off the machine of Patroni's leader, so that one machine's failure does not take both.

Without etcd's leader every request waits for an election, Patroni's on the standbys too: one to three seconds.
"""

from itertools import count
from urllib.parse import urlsplit

from walproof.patroni.etcd3 import Etcd3, Fields


class EtcdLeader:
    """The leader of one etcd cluster."""

    def __init__(self, etcd: Etcd3) -> None:
        """`etcd`: a client that no other thread uses."""
        self._etcd = etcd
        self._turns = count()

    def leave(self, host: str) -> str:
        """Move it off that host to another member; the name of that one, "" where it does not stand on the host.

        TargetError where etcd does not answer, refuses, or the member asked does not take it: another is asked the next
        time.
        """
        members = {int(m["ID"]): m for m in self._etcd.call("/cluster/member/list", {}).get("members", ())}
        leader = int(self._etcd.call("/maintenance/status", {}).get("leader", 0))
        others = [number for number, m in sorted(members.items()) if number != leader and host not in _hosts(m)]
        if leader not in members or host not in _hosts(members[leader]) or not others:
            return ""
        to = others[next(self._turns) % len(others)]
        # Only the leader does it; the others answer that they are not.
        self._etcd.call("/maintenance/transfer-leadership", {"targetID": str(to)})
        return str(members[to].get("name", to))


def _hosts(member: Fields) -> set[str | None]:
    return {urlsplit(str(url)).hostname for url in member.get("clientURLs", ())}
