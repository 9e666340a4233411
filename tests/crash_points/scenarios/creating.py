"""Tasks are created: singly, in the caller's transaction, with keys, with dependencies, in bulk, as
a workflow.
"""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import Group
from django.db import transaction

from django_durable_tasks import Workflow
from django_durable_tasks.models import Task
from tests.crash_points.bodies import single, well
from tests.crash_points.scenarios.scenario import Scenario, nothing
from tests.factories import a_task

WELL = "tests.crash_points.bodies.well"


def a_workflow() -> Workflow:
    """Return a workflow: two roots, a task that depends on both, one that depends on one, one on
    all of those, and a sub-workflow.
    """
    wf, sub = Workflow("dying", on_complete=well), Workflow("sub")
    sub.add(well, step="inner")
    body, root = wf.add(well, step="body"), wf.add(well, step="root")
    both = wf.add(well, after=[body, root], step="both")
    wf.add(well, after=[body, both], step="last")
    wf.add(well, after=wf.add_workflow(sub, after=body, step="sub"), step="end")
    return wf


def _alone(_: Any) -> None:
    well.using(idempotency_key="alone").delay(1)


def _with_an_order(_: Any = None) -> None:
    with transaction.atomic():
        Group.objects.create(name="order")
        for number in (1, 2):
            well.delay(number)


def _with_an_order_again(_: Any) -> None:
    if not Group.objects.exists():
        _with_an_order()


def _behind(upstream: Task) -> None:
    well.using(idempotency_key="behind", depends_on=[upstream]).schedule(1)


def _editing(_: Any) -> None:
    well.using(key="editable").schedule(2)


def _single(_: Any) -> None:
    single.using(idempotency_key="single").schedule("subject")


def _many(_: Any) -> None:
    well.schedule_many([(1,), (2,), (3,)])


def _flow(_: Any) -> None:
    a_workflow().start(key="the one")


SCENARIOS = (
    Scenario(name="alone", scene=nothing, operation=_alone, again=_alone),
    Scenario(
        name="in a transaction", scene=nothing, operation=_with_an_order, again=_with_an_order_again
    ),
    Scenario(
        name="behind another", scene=lambda: a_task(name=WELL), operation=_behind, again=_behind
    ),
    Scenario(
        name="under the key of another",
        scene=lambda: a_task(name=WELL, key="editable", args=[1], due=3600),
        operation=_editing,
        again=_editing,
    ),
    Scenario(name="unique", scene=nothing, operation=_single, again=_single),
    Scenario(name="many", scene=nothing, operation=_many, or_nothing=True),
    Scenario(name="a workflow", scene=nothing, operation=_flow, again=_flow),
)
