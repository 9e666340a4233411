"""The leader resolves endings, counts them into workflows; an operator replays a failed task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

from django.contrib.auth.models import Group

from django_durable_tasks.cluster.nodes import HeartbeatMonitor
from django_durable_tasks.models import Task
from django_durable_tasks.scheduler import jobs
from django_durable_tasks.states.machine import EndingKind, Outcome
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.tasks import attempts, operator_actions
from tests.crash_points import bodies
from tests.crash_points.scenarios.creating import a_workflow
from tests.crash_points.scenarios.ending import first_of
from tests.crash_points.scenarios.scenario import Scenario
from tests.database.dependencies.worker_and_leader import begin, of, question, resolve_all, succeed

HOPELESS = Outcome(
    kind=EndingKind.FAILED,
    error="ExpectedFailure: no",
    error_type="ExpectedFailure",
    traceback="ExpectedFailure: no",
    retryable=False,
)


def _ended(end: Callable[[Task], None]) -> Callable[[], Task]:
    """Return a scene that starts the workflow and ends its body, without resolving the ending."""

    def scene() -> Task:
        body = of(a_workflow().start(key="the one"), "body")
        end(body)
        return body

    return scene


def _counted() -> Task:
    body = _ended(succeed)()
    _tell(None)
    return body


def _fail(task: Task) -> None:
    assert attempts.fail(begin(task), HOPELESS, "worker@host")


def _given_up() -> Task:
    first = first_of(bodies.ill_at_first)()
    _fail(first)
    resolve_all()
    Group.objects.create(name="healed")
    return first


# On a busy machine a slice could end after another batch than in the recorded run.
_WHOLE = 60.0


def _tell(_: Any) -> None:
    with mock.patch.object(jobs, "SLICE", _WHOLE):
        jobs.resolve_dependents(database_now(), HeartbeatMonitor())


def _count(_: Any) -> None:
    with mock.patch.object(jobs, "SLICE", _WHOLE):
        jobs.count_endings(database_now(), HeartbeatMonitor())


def _replay(row: Task) -> None:
    if Task.objects.filter(pk=row.pk, status="FAILED").exists():
        operator_actions.replay(question(row), by="bob")


SCENARIOS = (
    Scenario(name="resolve a success", scene=_ended(succeed), operation=_tell),
    Scenario(name="resolve a failure", scene=_ended(_fail), operation=_tell),
    Scenario(name="count into a workflow", scene=_counted, operation=_count),
    Scenario(name="replay", scene=_given_up, operation=_replay, again=_replay),
)
