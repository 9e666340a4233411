"""Tasks with limits, for the tests of limits."""

from __future__ import annotations

from django_durable_tasks import PerKey, durable_task


@durable_task(max_concurrency=1)
def one_at_a_time() -> None:
    """Run alone."""


@durable_task(rate_limit="10/m")
def ten_a_minute() -> None:
    """Start at most ten times a minute."""


@durable_task(max_concurrency=PerKey(2, "{0}"))
def two_for_each(customer: str) -> None:
    """Run at most twice at once per customer."""


@durable_task
def unlimited() -> None:
    """Run without limits."""


@durable_task(max_concurrency=4, weight=3)
def heavy() -> None:
    """Use three of four units."""


@durable_task(rate_limit=PerKey("2/d", "{0}"), max_concurrency=PerKey(1, "{0}"), weight=1)
def slowly_for_each(customer: str) -> None:
    """Start at most twice a day per customer, and never twice at once."""


@durable_task(rate_limit=PerKey("10/m", "{0}"))
def ten_a_minute_for_each(customer: str) -> None:
    """Start at most ten times a minute per customer."""


@durable_task(max_concurrency=PerKey(1, "{0}"))
def one_for_each(customer: str) -> None:
    """Run at most once at a time per customer, shared with other tasks of the customer."""


@durable_task(max_concurrency=PerKey(5, "{0}"))
def five_for_each(customer: str) -> None:
    """Run at most five times at once per customer."""
