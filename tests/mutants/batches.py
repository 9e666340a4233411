"""Guards of batches and of the hand-over of limit capacity that can be removed."""

from __future__ import annotations

from dataclasses import replace


def with_counted_crashes() -> None:
    """Count a crash for every task of a batch whose process died."""
    from django_durable_tasks.engine.tasks import attempts

    decide = attempts.decide
    attempts.decide = lambda outcome, row: decide(outcome, replace(row, in_batch=False))


def with_a_hand_over_that_counts_nothing() -> None:
    """Hand over as if no capacity of the limits were in use."""
    from django_durable_tasks.engine.limits import usage

    setattr(usage, "count", lambda **_: usage.Usage())  # noqa: B010 - mypy knows it as a function
