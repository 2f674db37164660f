"""When a packet is due at the other end, or that it never is. Clock and dice are arguments; it sends nothing."""

from random import Random

from walproof.links.settings import LinkSetting

QUEUE_S = 0.1
"""A rate-limited direction queues this much and then drops the newest, as a router's tail-drop queue does."""


class Lane:
    """One direction at work: the setting, and how long it is still busy with earlier packets.

    Packets never overtake one another, whatever the jitter: it models a queue of changing length, because reordered
    segments would make TCP retransmit, which a cable does not. Jitter is uniform in ±jitter_s and never makes a
    packet due before it came.
    """

    __slots__ = ("busy_until", "dice", "last_due", "offered", "offered_bytes", "refused", "setting", "taken")

    def __init__(self, setting: LinkSetting, dice: Random) -> None:
        self.setting = setting
        self.dice = dice
        self.busy_until = 0.0
        self.last_due = 0.0
        self.offered = 0
        self.offered_bytes = 0
        self.taken = 0
        """Packets lost by asked loss."""
        self.refused = 0
        """Packets lost to a cut or to a full queue."""

    def due(self, now: float, size: int) -> float | None:
        """Time in seconds at which a packet of `size` bytes that came `now` is due; None when it is lost."""
        setting = self.setting
        self.offered += 1
        self.offered_bytes += size
        if setting.cut:
            self.refused += 1
            return None
        if setting.loss and self.dice.random() < setting.loss:
            self.taken += 1
            return None
        sent = now
        if setting.rate_bps is not None:
            begun = self.busy_until if self.busy_until > now else now
            if begun - now > QUEUE_S:
                self.refused += 1
                return None
            sent = self.busy_until = begun + size * 8 / setting.rate_bps
        due = sent + setting.delay_s
        if setting.jitter_s:
            due = max(due + self.dice.uniform(-setting.jitter_s, setting.jitter_s), sent)
        due = max(due, self.last_due)
        self.last_due = due
        return due
