"""Durable tasks that a release does not have: TEST_REMOVED names those that this process lacks."""

import os

from django_durable_tasks import durable_task

REMOVED = frozenset(os.environ.get("TEST_REMOVED", "").split(","))


@durable_task
def kept() -> None:
    """Exist in every release."""


if "single" not in REMOVED:

    @durable_task
    def single(number: int = 0) -> int:
        """Return the number."""
        return number


if "batched" not in REMOVED:

    @durable_task(batch=20)
    def batched(number: int = 0) -> int:
        """Return the number."""
        return number
