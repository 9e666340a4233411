"""Calls of durable tasks that are right, and wrong ones that type checkers must refuse.

mypy checks this module in `make lint`, and no program imports it. It reports each wrong call that it
accepts, because the comment on its line is then unused (`warn_unused_ignores`).
"""

from __future__ import annotations

from datetime import UTC, datetime

from django_durable_tasks import durable_task, recurring


@durable_task(queue="reports")
def build(day: str, copies: int = 1) -> str:
    """Have options, and a parameter with a default."""
    return day


@durable_task
def plain(number: int) -> None:
    """Have no options."""


@durable_task(bind=True, max_attempts=3)
def bound(self: object, day: str) -> int:
    """Receive the task itself too."""
    return 1


@recurring("nightly", cron="30 2 * * *", timezone="Europe/London", catch_up_mode="RUN_ONE_NOW")
@durable_task
def report(day: str = "") -> str:
    """Have a schedule."""
    return day


def right() -> tuple[int, str]:
    """Call each form with arguments of its types."""
    build.delay("2026-11-20", copies=2)
    plain.schedule(1)
    bound.delay("2026-11-20")
    build.schedule("2026-11-20", run_at=datetime.now(UTC))
    length: int = bound("2026-11-20")
    text: str = report("today")
    return length, text


def wrong() -> str:
    """Call each form with an argument of another type, or one too many."""
    build.delay(5)  # type: ignore[arg-type]
    plain.schedule(1, 2)  # type: ignore[call-overload]
    bound.delay(3)  # type: ignore[arg-type]
    report(5)  # type: ignore[arg-type]
    recurring("x", cron=5)  # type: ignore[arg-type]
    recurring("x", crn="* * * * *")  # type: ignore[call-arg]
    text: str = bound("2026-11-20")  # type: ignore[assignment]
    return text
