"""Each minute is counted while it lasts and after each delay; a catch-up counts it once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from django_durable_tasks.contrib.metrics.counts import is_due
from django_durable_tasks.contrib.metrics.series import DELAYS, MINUTE

START = datetime(2026, 3, 7, 10, 0, tzinfo=UTC)
END = START + MINUTE


def test_a_minute_is_counted_while_it_lasts_and_after_each_delay() -> None:
    counted: list[timedelta] = []
    now = START
    while now < START + timedelta(hours=2):
        if is_due(START, START + counted[-1] if counted else None, now):
            counted.append(now - START)
        now += timedelta(seconds=5)
    lasting = [timedelta(seconds=seconds) for seconds in range(0, 60, 5)]
    assert counted == [*lasting, *(MINUTE + delay for delay in DELAYS)]


def test_a_minute_is_counted_once_after_an_outage() -> None:
    assert is_due(START, None, END + DELAYS[-1])
    assert is_due(START, START, END + DELAYS[-1])
    assert not is_due(START, END + DELAYS[-1], END + 2 * DELAYS[-1])
