"""Guards of batches and of the hand-over of limit capacity that can be removed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any


def with_counted_crashes() -> None:
    """Count a crash for every task of a batch whose process died."""
    from django_durable_tasks.states.decisions import decide
    from django_durable_tasks.tasks import attempts

    def alone(outcome: Any, row: Any) -> Any:
        return decide(outcome, replace(row, in_batch=False))

    setattr(attempts, "decide", alone)  # noqa: B010 - mypy: attempts does not export it


def with_a_hand_over_that_counts_nothing() -> None:
    """Hand over as if no capacity of the limits were in use."""
    from django_durable_tasks.limits import waitlist

    setattr(waitlist, "count_usage", lambda **_: waitlist.Usage())  # noqa: B010 - mypy knows it as a function


def _without(module: Any, operation: str, guard: str, instead: str = "") -> None:
    """Remove a guard from the SQL that this module executes. Raises LookupError without it.

    On a database without SQL of its own nothing is removed.
    """
    from django_durable_tasks.store.statements import statement

    def unguarded(name: str) -> str | None:
        sql = statement(name)
        if name != operation or sql is None:
            return sql
        if guard not in sql:
            raise LookupError(f"The mutant no longer finds the guard in {operation}.")
        return sql.replace(guard, instead)

    module.statement = unguarded


def _has_sql(operation: str) -> bool:
    from django_durable_tasks.store.statements import statement

    return statement(operation) is not None


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
    from django_durable_tasks.states import batches

    _without(batches, "succeed_many", "AND task.epoch = success.epoch")
    _owned_by("run_id")


def without_the_run_id_of_successes() -> None:
    """Accept a success of a batch from any run with the epoch of the task."""
    from django_durable_tasks.states import batches

    _without(batches, "succeed_many", "AND task.run_id = success.run_id")
    _owned_by("epoch")


def with_batches_of_all_tasks() -> None:
    """Take tasks into batches that run alone."""
    from django_durable_tasks.states import batches

    _without(batches, "take", "AND in_batch")
    if not _has_sql("take"):
        with_limited_batches_of_all_tasks()


def with_limited_batches_of_all_tasks() -> None:
    """Take tasks into batches within limits that run alone."""
    from django_durable_tasks.models.tasks import TaskQuerySet

    setattr(TaskQuerySet, "waiting_for_batch", TaskQuerySet.pending)  # noqa: B010 - mypy knows it as a method


def with_claims_of_tasks_in_batches() -> None:
    """Claim tasks by their ids although they run in batches."""
    from django_durable_tasks.models.tasks import TaskQuerySet
    from django_durable_tasks.states import claims

    _without(claims, "claim_these", "ELSE NOT in_batch AND", "ELSE")
    if not _has_sql("claim_these"):
        setattr(TaskQuerySet, "published_alone", TaskQuerySet.pending)  # noqa: B010 - mypy knows it as a method


def with_any_number_of_batch_messages() -> None:
    """Publish a batch message although one is outstanding."""
    from django_durable_tasks.tasks import batches

    free = "WHERE message.due_at IS NULL OR message.due_at <= clock_timestamp()"
    _without(batches, "reserve_batch_messages", free)
    reserved = batches.ReservedMessage

    def reserve(pairs: Sequence[tuple[str, str]], *_: float) -> list[Any]:
        return [reserved(queue, name, 1, 1) for queue, name in pairs]

    setattr(batches, "_reserve_pairs", reserve)  # noqa: B010 - mypy knows it as a function
