"""A run ends: with success, with follow-ups, in the body's own transaction, after steps, by a
retry, finally; its dependents are resolved.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from django.contrib.auth.models import Group

from django_durable_tasks import Workflow
from django_durable_tasks.choices import Status
from django_durable_tasks.models import Task
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.tasks import claim
from tests.crash_points import bodies
from tests.crash_points.scenarios.scenario import Scenario, Stand
from tests.crash_points.scenarios.starting import messages
from tests.database.dependencies.worker_and_leader import of
from tests.factories import a_task


def _message(body: Any, *args: Any) -> Callable[[], Task]:
    return lambda: a_task(
        "QUEUED", name=body.name, args=list(args), max_attempts=body.durable_options.max_attempts
    )


def first_of(body: Any) -> Callable[[], Task]:
    """Return a scene that starts a workflow whose first task has this body and two dependents, and
    publishes it.
    """

    def scene() -> Task:
        wf = Workflow("ending")
        first = wf.add(body, step="first")
        wf.add(bodies.well, after=first, step="second")
        wf.add(bodies.well, after={first: "MUST_FINISH"}, step="third")
        row = of(wf.start(), "first")
        # Not published at COMMIT while the state of its queue is unknown.
        if row.status == Status.PENDING:
            claim.claim_these([row.pk], database_now(), uuid.uuid4())
            row.refresh_from_db()
        return row

    return scene


def _with_its_body() -> Stand:
    """Return the state of the body's own rows. A COMMIT that failed is an error of the body, and an
    attempt.
    """
    names = list(Group.objects.values_list("name", flat=True))
    return names, list(Task.objects.values_list("status", flat=True))


SCENARIOS = (
    Scenario(name="success", scene=first_of(bodies.well), operation=messages),
    Scenario(name="success with follow-ups", scene=_message(bodies.onward, 1), operation=messages),
    Scenario(
        name="success with its body",
        scene=_message(bodies.atomically, "once"),
        operation=messages,
        stand=_with_its_body,
    ),
    Scenario(name="success with growth", scene=first_of(bodies.growing), operation=messages),
    Scenario(name="failure with another try", scene=_message(bodies.ill), operation=messages),
    Scenario(name="failure for good", scene=first_of(bodies.hopeless), operation=messages),
)
STEPS = (
    Scenario(
        name="success after steps",
        scene=_message(bodies.in_steps),
        operation=messages,
        stand=_with_its_body,
    ),
)
