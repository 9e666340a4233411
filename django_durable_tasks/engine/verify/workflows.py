"""Checks of workflow runs: their counters and status against their tasks, and unfinished starts."""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django.db.models import Count

from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.dependencies import edges
from django_durable_tasks.engine.verify.check import Check, Look, Rows, finding
from django_durable_tasks.engine.workflows import runs, start
from django_durable_tasks.engine.workflows.start import ABANDONED_AFTER
from django_durable_tasks.models import EndingEvent, WorkflowRun
from django_durable_tasks.rules.states import Status
from django_durable_tasks.rules.verify import (
    Finding,
    RunFacts,
    Severity,
    Wrong,
    wrong_counts,
    wrong_status,
)
from django_durable_tasks.rules.workflows.plan import COUNTS, WorkflowStatus

_FOLD, _BATCH, _MOST = 2_000, 2_000, 20

Notes = dict[uuid.UUID, list[tuple[int, str, int]]]


def _notes(keys: Sequence[uuid.UUID]) -> Notes:
    found: Notes = defaultdict(list)
    waiting = edges.endings().filter(workflow_id__in=keys).order_by("pk")
    for workflow, pk, status, change in waiting.values_list("workflow_id", "pk", "status", "delta"):
        if workflow is not None:
            found[workflow].append((pk, status, change))
    return found


def _facts(rows: Rows) -> Iterator[tuple[uuid.UUID, RunFacts]]:
    """Return the runs whose tasks did not change while they were counted.

    Under the lock of a run its ending events can only be added. If they are equal before and after
    the count, no task ended or was replayed.
    """
    found: list[WorkflowRun] = list(rows)
    keys = [run.pk for run in found]
    before, there = _notes(keys), _present(keys)
    after = _notes(keys)
    for run in found:
        if before.get(run.pk) == after.get(run.pk):
            yield run.pk, _fact(run, after.get(run.pk, []), there[run.pk])


def _present(keys: Sequence[uuid.UUID]) -> dict[uuid.UUID, Counter[str]]:
    there: dict[uuid.UUID, Counter[str]] = defaultdict(Counter)
    counted = (
        tables.tasks().filter(workflow__in=keys).order_by().values_list("workflow_id", "status")
    )
    for workflow, status, number in counted.annotate(number=Count("pk")):
        there[workflow][status] = number
    return there


def _fact(run: WorkflowRun, notes: Sequence[tuple[int, str, int]], there: Counter[str]) -> RunFacts:
    noted: Counter[str] = Counter()
    for _, status, change in notes:
        noted[COUNTS[status]] += change
    return RunFacts(
        status=run.status,
        total=run.total,
        counted={name: getattr(run, name) for name in COUNTS.values()},
        noted=noted,
        present=there,
        notes=len(notes),
        cancelled=run.cancel_requested_at is not None,
        reason=run.reason,
    )


def miscounted(look: Look, rows: Rows) -> list[Finding]:
    """Find runs whose counters differ from their tasks."""
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
            else "Some of its tasks were deleted: look who did, and cancel the run.",
        )
        for pk, run in _facts(rows)
        for wrong in wrong_counts(run)
    ]


def _recount(look: Look, findings: Sequence[Finding]) -> Mapping[Any, str]:
    keys = sorted({one.key for one in findings})
    for pk, run in _facts(WorkflowRun.objects.using(tables.database()).filter(pk__in=keys)):
        safe: list[Wrong] = [wrong for wrong in wrong_counts(run) if wrong.safe]
        right = {wrong.field: wrong.value for wrong in safe}
        edges.runs().filter(pk=pk).update(updated_at=tables.NOW, **right)
    _judge_anew(keys)
    return dict.fromkeys(keys, "counted anew")


def _judge_anew(keys: Sequence[uuid.UUID]) -> None:
    """Make the leader count these runs again: add an ending event without a change for each."""
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


def misjudged(look: Look, rows: Rows) -> list[Finding]:
    """Find open runs whose tasks have all ended, and ended ones with open tasks."""
    judged = ((pk, run, wrong_status(run)) for pk, run in _facts(rows) if not wrong_counts(run))
    return [
        finding(
            "workflow-status",
            "workflow run",
            pk,
            wrong.field,
            wrong.found,
            wrong.right,
            repair="judge it by its counts",
        )
        for pk, _, wrong in judged
        if wrong is not None
    ]


def _judge(look: Look, findings: Sequence[Finding]) -> Mapping[Any, str]:
    keys = [one.key for one in findings]
    _judge_anew(keys)
    return dict.fromkeys(keys, "judged by its counts")


def abandoned(look: Look, rows: Rows) -> list[Finding]:
    """Find starts that make no progress and were not deleted by a leader."""
    if not look.may_judge(ABANDONED_AFTER):
        return []
    found = rows.filter(
        status=WorkflowStatus.STARTING,
        parent__isnull=True,
        updated_at__lt=look.ago(2 * ABANDONED_AFTER),
    )
    return [
        finding(
            "workflow-starts",
            "workflow run",
            pk,
            "status",
            WorkflowStatus.STARTING.value,
            f"sealed, or removed, {ABANDONED_AFTER:g} s after its last row",
            severity=Severity.LATE,
            repair="remove what was written of it",
        )
        for pk in found.values_list("pk", flat=True)
    ]


def _remove(look: Look, findings: Sequence[Finding]) -> Mapping[Any, str]:
    done: dict[Any, str] = {}
    for one in findings:
        if start.give_up(one.key, look.ago(ABANDONED_AFTER)):
            batches = iter(range(_MOST))
            while start.remove_given_up(one.key, _BATCH) and next(batches, None) is not None:
                pass
            done[one.key] = "given up, and removed"
    return done


CHECKS = tuple(
    Check(
        name=name, group="graphs", question=question, ground=WorkflowRun, judge=judge, repair=repair
    )
    for name, question, judge, repair in (
        (
            "workflow-counts",
            "Do the counts of each workflow run equal the statuses of its tasks?",
            miscounted,
            _recount,
        ),
        (
            "workflow-status",
            "Does the status of each workflow run match its counts?",
            misjudged,
            _judge,
        ),
        ("workflow-starts", "Is each start of a workflow finished or removed?", abandoned, _remove),
    )
)
