"""A worker whose broker is the database takes due tasks: it starts them before its children receive
them.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django_durable_tasks.celery import worker_node
from django_durable_tasks.celery.prepared_messages import celery_id_of
from django_durable_tasks.models import Limit
from django_durable_tasks.states.demand import QueueDemand
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.store.connections import dedicated_connection
from django_durable_tasks.tasks import batches, claim
from tests.crash_points.scenarios.creating import WELL
from tests.crash_points.scenarios.scenario import Scenario
from tests.crash_points.successors import deliver
from tests.factories import QUEUE, a_task
from tests.process_state import new_process_state

LEASE = 10.0


def _take() -> Any:
    node = worker_node.place(LEASE).node
    with dedicated_connection():
        return claim.take([QueueDemand(QUEUE, 5)], database_now(), 5, node, {WELL: LEASE})


def _takes_and_runs(_: Any) -> None:
    for message, run in _take():
        deliver(message.name, celery_id_of(message), run)


def _takes_and_returns(_: Any) -> None:
    runs = [run for _, run in _take() if run is not None]
    with dedicated_connection():
        batches.return_uncalled(runs, worker_node.place(0).worker)


def _three_due() -> None:
    for number in range(2):
        a_task(name=WELL, args=[number], due=-number)
    a_task(name=WELL, args=[9], priority=9, expires_at=database_now() - timedelta(seconds=1))
    a_task(name=WELL, args=[60], due=3600)


def _three_due_within_a_limit() -> None:
    Limit.objects.create(scope=f"task:{WELL}", max_concurrency=1)
    new_process_state()
    _three_due()


SCENARIOS = (
    Scenario(name="take and run", scene=_three_due, operation=_takes_and_runs),
    Scenario(name="within a limit", scene=_three_due_within_a_limit, operation=_takes_and_runs),
    Scenario(
        name="return what no child has begun",
        scene=_three_due,
        operation=_takes_and_returns,
        undone_starts=1,
    ),
)
