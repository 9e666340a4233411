"""Split transactions that belong together: a claim and its message, an ending and its log, an
ending and its follow-ups.
"""

from __future__ import annotations

from typing import Any

from django.db import transaction


def with_a_message_before_the_commit() -> None:
    """Publish claimed tasks while their claim may still be rolled back."""
    from django_durable_tasks.celery import publisher
    from django_durable_tasks.tasks import claim as task_claim

    claim = task_claim.claim_of

    def hasty(*words: Any, **more: Any) -> Any:
        with transaction.atomic():
            claimed = claim(*words, **more)
            publisher.publish(claimed.messages)
        return claimed._replace(messages=[])

    setattr(task_claim, "claim_of", hasty)  # noqa: B010 - mypy knows it as a function


def with_an_ending_in_two_transactions() -> None:
    """Write status and budgets first, and the log afterwards."""
    from django_durable_tasks.states import attempt_log
    from django_durable_tasks.states import attempt_log as transition_dead_letters

    log_endings, open_cases = attempt_log.log_endings, transition_dead_letters.open_dead_letters
    attempt_log.log_endings = lambda results: transaction.on_commit(lambda: log_endings(results))
    transition_dead_letters.open_dead_letters = lambda results: transaction.on_commit(
        lambda: open_cases(results)
    )


def with_followups_after_the_commit() -> None:
    """Create follow-ups after the commit of the success."""
    from django_durable_tasks.tasks import enqueue

    create = enqueue.create_followups

    def later(followups: Any) -> Any:
        transaction.on_commit(lambda: create(followups))

    setattr(enqueue, "create_followups", later)  # noqa: B010 - mypy knows it as a function
