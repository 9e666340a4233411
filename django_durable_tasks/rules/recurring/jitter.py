"""Distributes fires that would start at the same time. The delay is a hash of schedule and fire
time, so it is reproducible.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from hashlib import blake2b

from django_durable_tasks.rules.recurring.effective import PlannedRun

_WHOLE = 2**64
_MILLISECOND = timedelta(milliseconds=1)


def effective(
    planned: PlannedRun, next_at: datetime | None, seed: str, seconds: float, percent: float
) -> datetime:
    """Return when the fire runs: ``at`` plus up to ``seconds``, or up to ``percent`` of the time to
    the next fire.

    The result is always before the next fire, as in Temporal. Without a next fire, ``percent`` has
    no effect.
    """
    way = None if next_at is None else next_at - planned.at
    span = timedelta(seconds=seconds) if seconds or way is None else way * (percent / 100)
    if way is not None:
        span = min(span, max(way - _MILLISECOND, timedelta()))
    seed_bytes = f"{seed}|{planned.nominal.astimezone(UTC).isoformat()}".encode()
    share = int.from_bytes(blake2b(seed_bytes, digest_size=8).digest(), "big") / _WHOLE
    return planned.at + span * share
