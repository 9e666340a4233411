"""A batch message is recorded and published; it arrives, starts tasks and ends them together; the
process of a batch dies.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from django_durable_tasks.celery import worker_node
from django_durable_tasks.models import Limit, Task
from django_durable_tasks.scheduler.dispatch_loop import BatchDispatch
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.store.connections import dedicated_connection
from django_durable_tasks.task_values import RunLocation
from django_durable_tasks.tasks import batches
from tests.crash_points import bodies
from tests.crash_points.scenarios.dispatching import the_broker_is_back, without_broker
from tests.crash_points.scenarios.ending import first_of
from tests.crash_points.scenarios.scenario import Scenario, Stand, stand
from tests.crash_points.successors import deliver_batch
from tests.factories import QUEUE, a_task

_TOKEN = b"\x01" * batches.TOKEN_BYTES


def _due(body: Any, number: int, **fields: Any) -> str:
    """Create tasks for batches of this body, the first one due first; return the body's name."""
    options = body.durable_options
    for one in range(number):
        a_task(
            name=body.name,
            args=[one],
            due=one - 60,
            in_batch=True,
            max_attempts=options.max_attempts,
            max_crashes=options.max_crashes,
            **fields,
        )
    return str(body.name)


def _with_crashes() -> Stand:
    """Return also the crashes: no batch that dies may charge any."""
    return stand(), sorted(Task.objects.values_list("name", "crashes"))


def _scenario(name: str, scene: Callable[[], Any], **more: Any) -> Scenario:
    return Scenario(
        name=name, scene=scene, stand=_with_crashes, **{"operation": deliver_batch, **more}
    )


def _first_of_a_workflow() -> str:
    first_of(bodies.small)()
    return str(bodies.small.name)


def _limited() -> str:
    """Let one of three tasks start at once; the others wait for its end, and are published alone."""
    Limit.objects.create(scope="key:acme", max_concurrency=1)
    return _due(bodies.small, 3, limit_key="acme")


def _publish(_: Any) -> None:
    dispatch = BatchDispatch()
    with dedicated_connection():
        dispatch.read(database_now())
    dispatch.publish()


def _without_broker() -> None:
    _due(bodies.small, 3)
    without_broker()


def _half_ended() -> None:
    """Start three tasks in a process that records the success of one and dies."""
    name, here = _due(bodies.small, 3), worker_node.place(60)
    place = RunLocation(node=here.node, worker=here.worker, lease=60)
    first, *_ = batches.take(QUEUE, name, batches.run_ids_of(_TOKEN, 3), place)
    batches.succeed([batches.Success(run=first, result="0", wait=0.0)], here.worker)
    other = RunLocation(node=uuid.uuid4(), worker="other", lease=60)
    _due(bodies.mixed, 1)
    batches.take(QUEUE, bodies.mixed.name, batches.run_ids_of(_TOKEN, 1), other)


def _end_runs_of_dead_child(_: Any) -> None:
    here = worker_node.place(60)
    with dedicated_connection():
        batches.end_runs_of_dead_child(_TOKEN, here.node, "WorkerLostError", here.worker)


SCENARIOS = (
    _scenario("publish a batch message", lambda: _due(bodies.small, 3), operation=_publish),
    _scenario(
        "publish without a broker", _without_broker, operation=_publish, again=the_broker_is_back
    ),
    _scenario(
        "a success, a failure, a slow function and a task behind it",
        lambda: _due(bodies.mixed, 4),
        undone_starts=1,
    ),
    _scenario("tasks of a workflow", _first_of_a_workflow),
    _scenario("within a limit", _limited),
    _scenario("the parent of a dead process", _half_ended, operation=_end_runs_of_dead_child),
)
