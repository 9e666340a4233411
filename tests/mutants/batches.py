"""Guards of batches and of the hand-over of limit capacity that can be removed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any


def with_counted_crashes() -> None:
    """Count a crash for every task of a batch whose process died."""
    from django_durable_tasks.engine.tasks import attempts
    from django_durable_tasks.rules.tasks.endings import decide

    def alone(outcome: Any, row: Any) -> Any:
        return decide(outcome, replace(row, in_batch=False))

    setattr(attempts, "decide", alone)  # noqa: B010 - mypy: attempts does not export it


def with_a_hand_over_that_counts_nothing() -> None:
    """Hand over as if no capacity of the limits were in use."""
    from django_durable_tasks.engine.limits import usage

    setattr(usage, "count", lambda **_: usage.Usage())  # noqa: B010 - mypy knows it as a function
