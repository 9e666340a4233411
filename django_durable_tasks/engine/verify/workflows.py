"""Checks of workflow runs: their counts against their tasks, their status, and starts that were
never finished.
"""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django.db.models import Count

from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.dependencies import edges
from django_durable_tasks.engine.verify.check import Check, Rows, VerifyContext, finding
from django_durable_tasks.engine.workflows import runs, start
from django_durable_tasks.engine.workflows.start import ABANDONED_AFTER
from django_durable_tasks.models import EndingEvent, WorkflowRun
from django_durable_tasks.rules.states import Status
from django_durable_tasks.rules.verify import (
    Finding,
    RunFacts,
    Severity,
    WrongField,
    wrong_counts,
    wrong_status,
)
from django_durable_tasks.rules.workflows.plan import COUNTS, WorkflowStatus

_FOLD, _BATCH, _MOST = 2_000, 2_000, 20

Events = dict[uuid.UUID, list[tuple[int, str, int]]]


def _events(keys: Sequence[uuid.UUID]) -> Events:
    found: Events = defaultdict(list)
    waiting = edges.endings().filter(workflow_id__in=keys).order_by("pk")
    for workflow, pk, status, change in waiting.values_list("workflow_id", "pk", "status", "delta"):
        if workflow is not None:
            found[workflow].append((pk, status, change))
    return found


def _facts(rows: Rows) -> Iterator[tuple[uuid.UUID, RunFacts]]:
    """Yield the runs whose tasks did not change while they were counted.

    While a run is locked, its ending events are only added. If they are the same before and after
    the count, no task ended or was replayed in between.
    """
    found: list[WorkflowRun] = list(rows)
    keys = [run.pk for run in found]
    before, present = _events(keys), _present(keys)
    after = _events(keys)
    for run in found:
        if before.get(run.pk) == after.get(run.pk):
            yield run.pk, _fact(run, after.get(run.pk, []), present[run.pk])


def _present(keys: Sequence[uuid.UUID]) -> dict[uuid.UUID, Counter[str]]:
    counts: dict[uuid.UUID, Counter[str]] = defaultdict(Counter)
    counted = (
        tables.tasks().filter(workflow__in=keys).order_by().values_list("workflow_id", "status")
    )
    for workflow, status, number in counted.annotate(number=Count("pk")):
        counts[workflow][status] = number
    return counts


def _fact(
    run: WorkflowRun, events: Sequence[tuple[int, str, int]], present: Counter[str]
) -> RunFacts:
    uncounted: Counter[str] = Counter()
    for _, status, change in events:
        uncounted[COUNTS[status]] += change
    return RunFacts(
        status=run.status,
        total=run.total,
        counted={name: getattr(run, name) for name in COUNTS.values()},
        in_events=uncounted,
        present=present,
        uncounted_events=len(events),
        cancelled=run.cancel_requested_at is not None,
        reason=run.reason,
    )


def miscounted(context: VerifyContext, rows: Rows) -> list[Finding]:
    """Runs whose counts do not match the statuses of their tasks."""
    return [
        finding(
            "workflow-counts",
            "workflow run",
            pk,
            wrong.field,
            wrong.found,
            wrong.right,
            repair="write the recount under the run's lock" if wrong.safe else "",
            advice=""
            if wrong.safe
            else "Some of its tasks were deleted: find the cause and cancel the run.",
        )
        for pk, run in _facts(rows)
        for wrong in wrong_counts(run)
    ]


def _recount(context: VerifyContext, findings: Sequence[Finding]) -> Mapping[Any, str]:
    keys = sorted({one.key for one in findings})
    for pk, run in _facts(WorkflowRun.objects.using(tables.database()).filter(pk__in=keys)):
        safe: list[WrongField] = [wrong for wrong in wrong_counts(run) if wrong.safe]
        right = {wrong.field: wrong.value for wrong in safe}
        edges.runs().filter(pk=pk).update(updated_at=tables.NOW, **right)
    _count_again(keys)
    return dict.fromkeys(keys, "recounted")


def _count_again(keys: Sequence[uuid.UUID]) -> None:
    """Count these runs again, by inserting an ending event with delta 0 for each."""
    edges.endings().bulk_create(
        [
            EndingEvent(
                task_id=key, epoch=0, workflow_id=key, status=Status.SUCCESS, delta=0, resolved=True
            )
            for key in keys
        ]
    )
    while edges.endings().uncounted().filter(task_id__in=keys).exists() and runs.count_endings(
        _FOLD
    ):
        pass


def wrong_statuses(context: VerifyContext, rows: Rows) -> list[Finding]:
    """Open runs whose tasks have all ended, and ended runs with open tasks."""
    checked = ((pk, run, wrong_status(run)) for pk, run in _facts(rows) if not wrong_counts(run))
    return [
        finding(
            "workflow-status",
            "workflow run",
            pk,
            wrong.field,
            wrong.found,
            wrong.right,
            repair="set the status from its counts",
        )
        for pk, _, wrong in checked
        if wrong is not None
    ]


def _correct_statuses(context: VerifyContext, findings: Sequence[Finding]) -> Mapping[Any, str]:
    keys = [one.key for one in findings]
    _count_again(keys)
    return dict.fromkeys(keys, "status set from its counts")


def abandoned(context: VerifyContext, rows: Rows) -> list[Finding]:
    """Starts without progress that the leader has not removed."""
    if not context.is_steady_for(ABANDONED_AFTER):
        return []
    found = rows.filter(
        status=WorkflowStatus.STARTING,
        parent__isnull=True,
        updated_at__lt=context.ago(2 * ABANDONED_AFTER),
    )
    return [
        finding(
            "workflow-starts",
            "workflow run",
            pk,
            "status",
            WorkflowStatus.STARTING.value,
            f"finished or removed within {ABANDONED_AFTER:g} s of its last progress",
            severity=Severity.LATE,
            repair="delete its tasks",
        )
        for pk in found.values_list("pk", flat=True)
    ]


def _remove(context: VerifyContext, findings: Sequence[Finding]) -> Mapping[Any, str]:
    done: dict[Any, str] = {}
    for one in findings:
        if start.give_up(one.key, context.ago(ABANDONED_AFTER)):
            batches = iter(range(_MOST))
            while start.remove_given_up(one.key, _BATCH) and next(batches, None) is not None:
                pass
            done[one.key] = "abandoned and removed"
    return done


CHECKS = tuple(
    Check(
        name=name, group="graphs", question=question, ground=WorkflowRun, find=find, repair=repair
    )
    for name, question, find, repair in (
        (
            "workflow-counts",
            "Do the counts of each workflow run equal the statuses of its tasks?",
            miscounted,
            _recount,
        ),
        (
            "workflow-status",
            "Does the status of each workflow run match its counts?",
            wrong_statuses,
            _correct_statuses,
        ),
        ("workflow-starts", "Is each start of a workflow finished or removed?", abandoned, _remove),
    )
)
