"""Each minute is counted after each delay; a catch-up after an outage counts it once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from django_durable_tasks.metrics.series import DELAYS, MINUTE, minute_of, next_minute, skipped_to

START = datetime(2026, 3, 7, 10, 0, tzinfo=UTC)
KEPT = timedelta(days=2)


def _counts(nexts: list[datetime], now: datetime) -> list[tuple[int, datetime]]:
    """Make all counts that are due, and return them."""
    made = []
    while (due := next_minute(nexts, now, now - KEPT)) is not None:
        made.append(due)
        nexts[:] = [skipped_to(nexts, index, now, now - KEPT) for index in range(len(DELAYS))]
        nexts[due[0]] = due[1] + MINUTE
    return made


def test_a_minute_is_counted_after_each_delay() -> None:
    nexts, made = [START] * len(DELAYS), list[tuple[int, datetime]]()
    now = START
    while now < START + timedelta(hours=2):
        made += _counts(nexts, now)
        now += timedelta(seconds=5)
    assert [index for index, minute in made if minute == START] == [0, 1, 2]
    assert len(made) == len(set(made))


def test_no_minute_is_left_out_after_an_outage_and_none_is_counted_twice() -> None:
    nexts = [START] * len(DELAYS)
    outage = timedelta(hours=10)
    made = _counts(nexts, START + outage + DELAYS[0])
    assert {minute for _, minute in made} == {
        START + number * MINUTE for number in range(int(outage / MINUTE))
    }
    assert len(made) == len({minute for _, minute in made})


def test_minutes_whose_counts_are_deleted_are_left_out() -> None:
    now = START + timedelta(days=30)
    made = _counts([START] * len(DELAYS), now)
    assert min(minute for _, minute in made) == minute_of(now - KEPT)


def test_the_open_minute_is_not_counted() -> None:
    assert next_minute([START] * 3, START + MINUTE, START - KEPT) is None
    assert next_minute([START] * 3, START + MINUTE + DELAYS[0], START - KEPT) == (0, START)
