"""Creates the tasks and workflows that a task function returned, in the transaction that records
its success.
"""

from __future__ import annotations

from collections.abc import Sequence

from django_durable_tasks.engine import transitions
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.db.deadlocks import retry_on_deadlock
from django_durable_tasks.engine.tasks import attempts, enqueue
from django_durable_tasks.engine.workflows import runs, start
from django_durable_tasks.rules.tasks.runs import Run
from django_durable_tasks.rules.workflows.builder import AddedTasks, Builder
from django_durable_tasks.rules.workflows.followups import FollowUp, Schedule
from django_durable_tasks.rules.workflows.plan import Plan


@retry_on_deadlock
def succeed(run: Run, result: str | None, worker: str, followups: Sequence[FollowUp] = ()) -> bool:
    """Record the success with its log row and its follow-up tasks, all or nothing; return False if
    it was fenced.
    """
    if not followups:
        return attempts.succeed(run, result, worker)
    plans = [
        start.planned(followup) if isinstance(followup, Builder) else None for followup in followups
    ]
    schedules = enqueue.planned_followups(
        (followup for followup in followups if isinstance(followup, Schedule)), run.tenant_id
    )
    with tables.atomic():
        for followup, plan in zip(followups, plans, strict=True):
            if plan is not None:
                runs.hold(run, plan, grows=isinstance(followup, AddedTasks))
        accepted = transitions.succeed(run, result, worker)
        if accepted:
            enqueue.create_followups(schedules)
            for followup, plan in zip(followups, plans, strict=True):
                if plan is not None:
                    _start(run, followup, plan)
    return accepted or attempts.succeeded(run)


def _start(run: Run, followup: FollowUp, plan: Plan) -> None:
    if isinstance(followup, AddedTasks):
        runs.add_tasks(run, plan)
    else:
        start.start_after(run, plan)
