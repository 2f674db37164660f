"""When Patroni elected a successor, read from its log: the moment a member took the leader lock. Pure."""

import re
from datetime import datetime

_TOOK = re.compile(
    r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) INFO: promoted self to leader by acquiring session lock", re.MULTILINE
)


def elected_at(log: str, since: float) -> float | None:
    """The first time after `since` (seconds since the epoch) that Patroni says it took the lock; None when it does not.

    Patroni writes its machine's local time; the member runs on this one.
    """
    moments = [datetime.strptime(text, "%Y-%m-%d %H:%M:%S,%f").astimezone().timestamp() for text in _TOOK.findall(log)]
    return next((at for at in sorted(moments) if at > since), None)
