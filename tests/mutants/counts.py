"""The guard of the counts for the metrics that can be removed."""

from __future__ import annotations


def without_the_position() -> None:
    """Write the count of a minute although it is settled."""
    from datetime import UTC, datetime

    from django_durable_tasks.contrib.metrics import counts

    setattr(counts, "_locked_position", lambda: datetime(1970, 1, 1, tzinfo=UTC))  # noqa: B010 - mypy knows it as a function
