"""A run ends: well, with follow-ups, in the body's own transaction, by another try, for good; its
dependents hear.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib.auth.models import Group

from django_durable_tasks import Workflow
from django_durable_tasks.models import Task
from tests.crash_points import bodies
from tests.crash_points.stories.starting import messages
from tests.crash_points.stories.story import Stand, Story
from tests.database.dependencies.worker_and_leader import of
from tests.factories import a_task


def _message(body: Any, *args: Any) -> Callable[[], Task]:
    return lambda: a_task(
        "QUEUED", name=body.name, args=list(args), max_attempts=body.durable_options.max_attempts
    )


def first_of(body: Any) -> Callable[[], Task]:
    """Return what starts a workflow whose first task has this body, and rings it; two
    wait for it.
    """

    def scene() -> Task:
        wf = Workflow("ending")
        first = wf.add(body, step="first")
        wf.add(bodies.well, after=first, step="second")
        wf.add(bodies.well, after={first: "MUST_FINISH"}, step="third")
        return of(wf.start(), "first")

    return scene


def _with_its_body() -> Stand:
    """Return how the body's own rows stand: a COMMIT that did not come through is an error of the
    body, and a try.
    """
    names = list(Group.objects.values_list("name", flat=True))
    return names, list(Task.objects.values_list("status", flat=True))


STORIES = (
    Story(name="success", scene=first_of(bodies.well), deed=messages),
    Story(name="success with follow-ups", scene=_message(bodies.onward, 1), deed=messages),
    Story(
        name="success with its body",
        scene=_message(bodies.atomically, "once"),
        deed=messages,
        stand=_with_its_body,
    ),
    Story(name="success with growth", scene=first_of(bodies.growing), deed=messages),
    Story(name="failure with another try", scene=_message(bodies.ill), deed=messages),
    Story(name="failure for good", scene=first_of(bodies.hopeless), deed=messages),
)
