"""Keeps etcd's own leader off the machine of Patroni's leader, so that one machine's failure does not take both.

Without etcd's leader every request waits for an election, Patroni's on the standbys too: one to three seconds.
"""

from contextlib import closing
from itertools import count
from urllib.parse import urlsplit

from walproof.patroni.etcd3 import Etcd3, EtcdAccess, Fields


class EtcdLeader:
    """The leader of one etcd cluster."""

    def __init__(self, access: EtcdAccess) -> None:
        self._access = access
        self._turns = count()

    def leave(self, host: str) -> str:
        """Move it off that host to another member; the name of that one, "" where it does not stand on the host.

        TargetError where etcd does not answer, refuses, or the member asked does not take it: another is asked the next
        time.
        """
        with closing(Etcd3(self._access)) as etcd:
            members = {int(m["ID"]): m for m in etcd.call("/cluster/member/list", {}).get("members", ())}
            leader = int(etcd.call("/maintenance/status", {}).get("leader", 0))
            others = [number for number, m in sorted(members.items()) if number != leader and host not in _hosts(m)]
            if leader not in members or host not in _hosts(members[leader]) or not others:
                return ""
            to = others[next(self._turns) % len(others)]
            # Only the leader does it; the others answer that they are not.
            etcd.call("/maintenance/transfer-leadership", {"targetID": str(to)})
            return str(members[to].get("name", to))


def _hosts(member: Fields) -> set[str | None]:
    return {urlsplit(str(url)).hostname for url in member.get("clientURLs", ())}
