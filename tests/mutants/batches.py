"""Guards of batches and of the hand-over of limit capacity that can be removed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.mutants.statements import has_statement, with_text


def with_counted_crashes() -> None:
    """Count a crash for every task of a batch whose process died."""
    from django_durable_tasks.states.machine import decide
    from django_durable_tasks.tasks import attempts

    def alone(outcome: Any, row: Any) -> Any:
        return decide(outcome, replace(row, in_batch=False))

    setattr(attempts, "decide", alone)  # noqa: B010 - mypy: attempts does not export it


def with_a_hand_over_that_counts_nothing() -> None:
    """Hand over as if no capacity of the limits were in use."""
    from django_durable_tasks.limits import waitlist

    setattr(waitlist, "count_usage", lambda **_: waitlist.Usage())  # noqa: B010 - mypy knows it as a function


def _owned_by(*tokens: str) -> None:
    """Let only these tokens of a run identify its owner, beside the status."""
    from django_durable_tasks.choices import Status
    from django_durable_tasks.states import batches, guarded_update
    from django_durable_tasks.store.tables import tasks

    def owned(runs: Sequence[Any]) -> Any:
        rows = tasks().filter(pk__in=[run.task_id for run in runs], status=Status.RUNNING)
        if "epoch" in tokens:
            pairs = [(run.task_id, run.epoch) for run in runs]
            rows = rows.filter(guarded_update.matches_epochs(pairs))
        if "run_id" in tokens:
            rows = rows.filter(run_id__in=[run.run_id for run in runs])
        return rows

    setattr(batches, "owned", owned)  # noqa: B010 - mypy knows it as a function


def without_the_owner_of_undone_starts() -> None:
    """Return a task whose function was not called, even if another process runs it."""
    _owned_by()


def without_the_epoch_of_successes() -> None:
    """Accept a success of a batch in any epoch of the run."""

    with_text("succeed_many", ("AND task.epoch = success.epoch", ""))
    _owned_by("run_id")


def without_the_run_id_of_successes() -> None:
    """Accept a success of a batch from any run with the epoch of the task."""

    with_text("succeed_many", ("AND task.run_id = success.run_id", ""))
    _owned_by("epoch")


def with_batches_of_all_tasks() -> None:
    """Take tasks into batches that run alone."""

    with_text("take", ("AND in_batch", ""))
    if not has_statement("take"):
        with_limited_batches_of_all_tasks()


def with_limited_batches_of_all_tasks() -> None:
    """Take tasks into batches within limits that run alone."""
    from django_durable_tasks.models.tasks import TaskQuerySet

    setattr(TaskQuerySet, "waiting_for_batch", TaskQuerySet.pending)  # noqa: B010 - mypy knows it as a method


def with_claims_of_tasks_in_batches() -> None:
    """Claim tasks by their ids although they run in batches."""
    from django_durable_tasks.models.tasks import TaskQuerySet

    with_text("claim_these", ("ELSE NOT in_batch AND", "ELSE"))
    if not has_statement("claim_these"):
        setattr(TaskQuerySet, "published_alone", TaskQuerySet.pending)  # noqa: B010 - mypy knows it as a method


def with_any_number_of_batch_messages() -> None:
    """Publish a batch message although one is outstanding."""
    from django_durable_tasks.tasks import batches

    reserved = batches.ReservedMessage

    def reserve(pairs: Sequence[tuple[str, str]], *_: float) -> list[Any]:
        return [reserved(queue, name, 1, 1) for queue, name in pairs]

    setattr(batches, "_reserve_pairs", reserve)  # noqa: B010 - mypy knows it as a function
