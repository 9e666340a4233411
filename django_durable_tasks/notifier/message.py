"""The notification that wakes schedulers, and its channel. The format is the same in PostgreSQL and
Redis.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from django_durable_tasks import conf
from django_durable_tasks.due_index.redis import from_ms, instant_ms

CHANNEL = "durable_tasks_wake"
"""The channel in PostgreSQL. Channels are local to a database there; the notification contains the
region.
"""


def wake_channel(scope: str) -> str:
    """Return the channel in Redis, where all databases share the channels."""
    return f"{scope}:wake"


class NotificationKind(StrEnum):
    """The subject of a notification."""

    ROWS = "rows"
    LEADER_WORK = "leader_work"
    TEST = "test"


@dataclass(frozen=True, slots=True)
class Notification:
    """A notification of due tasks, of work for the leader, or of a listener's self-test.

    ``at`` is the first due time (UTC). ``word`` is the queue of that task, or the token of the
    self-test.
    """

    kind: NotificationKind
    at: datetime
    word: str = ""

    def spelled(self) -> str:
        """Return the notification as text."""
        return f"{conf.settings().REGION}|{self.kind}|{instant_ms(self.at)}|{self.word}"


def read(text: str) -> Notification | None:
    """Parse a notification; None if it is of another region or cannot be parsed."""
    region, _, rest = text.partition("|")
    kind, _, rest = rest.partition("|")
    stamp, _, word = rest.partition("|")
    if (
        region != conf.settings().REGION
        or kind not in set(NotificationKind)
        or not stamp.isdecimal()
        or len(stamp) > 14
    ):
        return None
    return Notification(NotificationKind(kind), from_ms(int(stamp)), word)
