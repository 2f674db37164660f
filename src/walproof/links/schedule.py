"""When a packet is due at the other end, or that it is lost. Time and random generator are arguments. Pure."""

from random import Random

from walproof.links.settings import LinkSetting

QUEUE_S = 0.1
"""A rate-limited direction queues this much and then drops the newest, as a router's tail-drop queue does."""


class Channel:
    """One direction of a link: its setting, and how long it is still busy with earlier packets.

    Packets never overtake one another, whatever the jitter: it models a queue of changing length, because reordered
    segments would make TCP retransmit, which a real link does not. Jitter is uniform in ±jitter_s and never makes a
    packet due before it came.
    """

    __slots__ = ("busy_until", "last_due", "lost", "offered", "offered_bytes", "refused", "rng", "setting")

    def __init__(self, setting: LinkSetting, rng: Random) -> None:
        self.setting = setting
        self.rng = rng
        self.busy_until = 0.0
        self.last_due = 0.0
        self.offered = 0
        self.offered_bytes = 0
        self.lost = 0
        """Packets lost by the configured loss."""
        self.refused = 0
        """Packets lost to a cut or to a full queue."""

    def due(self, now: float, size: int) -> float | None:
        """Time in seconds at which a packet of `size` bytes that arrived `now` is due; None when it is lost."""
        setting = self.setting
        self.offered += 1
        self.offered_bytes += size
        if setting.cut:
            self.refused += 1
            return None
        if setting.loss and self.rng.random() < setting.loss:
            self.lost += 1
            return None
        sent = now
        if setting.rate_bps is not None:
            start = self.busy_until if self.busy_until > now else now
            if start - now > QUEUE_S:
                self.refused += 1
                return None
            sent = self.busy_until = start + size * 8 / setting.rate_bps
        due = sent + setting.delay_s
        if setting.jitter_s:
            due = max(due + self.rng.uniform(-setting.jitter_s, setting.jitter_s), sent)
        due = max(due, self.last_due)
        self.last_due = due
        return due
