"""Tasks with limits, for the tests of limits."""

from __future__ import annotations

from django_durable_tasks import PerKey, durable_task


@durable_task(max_concurrency=1)
def one_at_a_time() -> None:
    """Run alone."""


@durable_task(rate_limit="10/m")
def ten_a_minute() -> None:
    """Start ten times a minute."""


@durable_task(max_concurrency=PerKey(2, "{0}"))
def two_for_each(customer: str) -> None:
    """Run twice at once for each customer."""


@durable_task
def unlimited() -> None:
    """Run as often as it is asked."""
