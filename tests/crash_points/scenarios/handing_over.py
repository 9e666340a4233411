"""A run ends under a limit, and its process hands the capacity to the next waiting tasks."""

from __future__ import annotations

import uuid

from django_durable_tasks.models import Limit, Task
from django_durable_tasks.store.clock import database_now
from tests.crash_points.scenarios.creating import WELL
from tests.crash_points.scenarios.scenario import Scenario
from tests.crash_points.scenarios.starting import messages
from tests.factories import QUEUE, a_task
from tests.messages import claim_due
from tests.process_state import new_process_state


def _one_and_two_that_wait() -> Task:
    """Return a QUEUED task; two others wait for its limit, of which one runs in batches."""
    Limit.objects.create(scope=f"task:{WELL}", max_concurrency=1)
    new_process_state()
    rows = [a_task(name=WELL, due=number - 60, args=[number]) for number in range(3)]
    claim_due(QUEUE, database_now(), 10, uuid.uuid4())
    assert Task.objects.waiting_for_limit().count() == 2
    Task.objects.unguarded().filter(pk=rows[1].pk).update(in_batch=True)
    found: Task = Task.objects.get(pk=rows[0].pk)
    return found


SCENARIOS = (Scenario(name="after a success", scene=_one_and_two_that_wait, operation=messages),)
