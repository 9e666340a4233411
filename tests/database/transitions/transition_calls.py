"""Every transition as one function of one task, so that tests can check the table of states for
each of them.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from django_durable_tasks.choices import Status
from django_durable_tasks.dependencies import edges, resolve
from django_durable_tasks.models import Task, TaskDependency
from django_durable_tasks.models.tasks import TaskQuerySet
from django_durable_tasks.states import batches, claims, dependencies, endings, inserts, runs
from django_durable_tasks.states.claims import RUN_COLUMNS, run_of
from django_durable_tasks.states.machine import EndingKind, Outcome
from django_durable_tasks.store import tables
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.task_values import Run, RunLocation
from django_durable_tasks.tasks import attempts, claim, operator_actions
from tests.factories import QUEUE, a_run, a_task, take_these
from tests.messages import claim_due

PLACE = RunLocation(node=uuid.UUID(int=1), worker="worker@host", lease=60.0)
FAILURE = Outcome(
    kind=EndingKind.FAILED,
    error="Broken: broken",
    error_type="Broken",
    traceback="Traceback ...",
    delay=60.0,
)
HOPELESS = Outcome(
    kind=EndingKind.FAILED, error="Hopeless: no", error_type="Hopeless", retryable=False
)
CRASH = Outcome(kind=EndingKind.CRASHED, error="The worker died.", error_type="Lost")


def question(*rows: Task) -> TaskQuerySet:
    """Return the query that selects these tasks."""
    return tables.tasks().filter(pk__in=[row.pk for row in rows])


def start(row: Task, epoch: int | None = None) -> Any:
    """Start the task with its own epoch or with another."""
    epoch = row.epoch if epoch is None else epoch
    started = runs.start(row.pk, epoch, uuid.uuid4(), PLACE)
    return started if isinstance(started, Run) else None


def heartbeat(
    row: Task, *, epoch: int | None = None, run_id: uuid.UUID | None = None
) -> dict[uuid.UUID, bool]:
    """Send one heartbeat for the task, with its own tokens or others."""
    tokens = (row.epoch if epoch is None else epoch, run_id or row.run_id or uuid.uuid4())
    return attempts.heartbeat([(row.pk, *tokens, 60.0)])


def end(*rows: Task, outcome: Outcome) -> Any:
    """End the runs of the rows."""
    return attempts.end_runs(question(*rows), lambda _: outcome, worker="worker@host")


def succeed(row: Task, result: str | None = None) -> bool:
    """Record the success of the task's run."""
    return (
        runs.succeed(a_run(row), result, "worker@host") if row.run_id else _succeed_without_run(row)
    )


def _succeed_without_run(row: Task) -> bool:
    return runs.succeed(_foreign_run(row), None, "worker@host")


def undo_start(row: Task) -> int:
    """Return the task to PENDING as if its function was not called."""
    return batches.undo_starts([a_run(row) if row.run_id else _foreign_run(row)])


def _foreign_run(row: Task) -> Run:
    (values,) = Task.objects.filter(pk=row.pk).values(*RUN_COLUMNS)
    values |= {"run_id": uuid.uuid4(), "node": PLACE.node}
    values |= {"started_at": row.created_at, "queued_at": row.created_at}
    return run_of([values[column] for column in RUN_COLUMNS])


def _later() -> Any:
    return database_now() + timedelta(hours=1)


def fail_for_want_of_an_upstream(row: Task) -> list[Any]:
    """Make the task depend, with policy FAIL, on a task that has failed, and resolve that ending."""
    if row.status != Status.BLOCKED:
        dependencies.fail_blocked([(row.pk, row.epoch)], {row.pk: "a test"}, {row.pk: row.pk})
        return []
    upstream = a_task(Status.FAILED)
    TaskDependency.objects.unguarded().create(
        task=row, depends_on=upstream, on_upstream_failure="FAIL"
    )
    edges.insert_events_again({upstream.pk: (upstream.epoch, upstream.status)})
    return [resolve.resolve_endings(10)]


ACTS: Mapping[str, Callable[[Task], Any]] = {
    "release": lambda row: dependencies.release([(row.pk, row.epoch)]),
    "block": lambda row: dependencies.block(question(row)),
    "fail": fail_for_want_of_an_upstream,
    "force_run": lambda row: dependencies.force_run(question(row), "by an operator"),
    "edit": lambda row: inserts.edit(question(row), run_at=_later()),
    "claim": lambda row: claim_due(QUEUE, database_now(), 10, PLACE.node),
    "take": lambda row: take_these(question(row), 10, PLACE),
    "undo_start": undo_start,
    "republish": lambda row: claim.republish(question(row), database_now(), 10),
    "return_to_pending": lambda row: claims.return_to_pending(question(row), 0.0),
    "start": start,
    "heartbeat": heartbeat,
    "succeed": succeed,
    "retry": lambda row: end(row, outcome=FAILURE),
    "exhaust": lambda row: end(row, outcome=HOPELESS),
    "lose": lambda row: end(row, outcome=CRASH),
    "cancel": lambda row: operator_actions.cancel(question(row)).total,
    "skip": lambda row: endings.skip(question(row), "a test"),
    "expire": lambda row: endings.expire(question(row), 10),
    "replay": lambda row: operator_actions.replay(question(row), by="anna"),
    "rerun": lambda row: endings.replay(question(row), "rerun"),
    "force_complete": lambda row: operator_actions.force_complete(question(row), by="anna"),
}
"""One function per transition. Each returns a true value if the task changed."""

move = operator_actions.move
