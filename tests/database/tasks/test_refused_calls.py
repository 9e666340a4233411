"""Calls with a foreign id, two conflicting keys or an impossible lease are refused or resolved
without affecting other tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from django_durable_tasks import Workflow, durable_task
from django_durable_tasks.choices import Status
from django_durable_tasks.exceptions import IdempotencyConflict, InvalidOption
from django_durable_tasks.models import RecurringTask, Task, Tenant
from django_durable_tasks.store.clock import database_now
from tests.factories import QUEUE, a_task, a_tenant
from tests.project import tasks


@durable_task(timeout=10, soft_timeout=5)
def limited() -> None:
    """Has both limits."""


@durable_task
def unlimited() -> None:
    """Has no limits."""


pytestmark = pytest.mark.django_db


def test_the_id_of_another_tenants_task_is_refused_and_no_task_is_returned() -> None:
    theirs, ours = a_task(tenant=a_tenant()), a_task()
    with pytest.raises(IdempotencyConflict, match="another tenant"):
        tasks.noop.using(queue=QUEUE, task_id=theirs.pk).schedule()
    assert set(Task.objects.values_list("pk", flat=True)) == {theirs.pk, ours.pk}
    ours.refresh_from_db()
    assert ours.status == Status.PENDING


@pytest.mark.parametrize("tenant", [Tenant(slug="unsaved"), "1", True, object()])
def test_an_unsaved_tenant_is_refused_and_not_replaced_by_the_default_tenant(
    tenant: object,
) -> None:
    with pytest.raises(InvalidOption, match="saved Tenant"):
        tasks.noop.using(queue=QUEUE, tenant=tenant).schedule()
    assert not Task.objects.exists()


def test_a_bulk_call_accepts_no_shared_id() -> None:
    call = tasks.add.using(queue=QUEUE, task_id=a_task().pk)
    with pytest.raises(InvalidOption, match="one by one"):
        call.schedule_many([(1, 2), (3, 4)])
    assert Task.objects.count() == 1


def test_a_key_of_a_running_task_stays_with_it_if_the_unique_key_of_the_new_call_is_taken() -> None:
    running = a_task(Status.RUNNING, name=tasks.unique.name, key="k", unique_key="u:first")
    other = tasks.unique.using(queue=QUEUE).schedule("second")
    assert tasks.unique.using(queue=QUEUE, key="k").schedule("second").pk == other.pk
    running.refresh_from_db()
    assert running.open_key == "k"
    assert Task.objects.count() == 2


def test_a_lease_shorter_than_the_heartbeat_is_refused_at_the_call() -> None:
    with pytest.raises(InvalidOption, match="2 x HEARTBEAT"):
        tasks.noop.using(queue=QUEUE, lease=29).schedule()
    assert tasks.noop.using(queue=QUEUE, lease=30).schedule().options == {"lease": 30.0}
    assert Task.objects.count() == 1


def _workflow(task: Any, options: dict[str, Any]) -> None:
    workflow = Workflow("limits")
    workflow.add(task.using(**options))
    workflow.start()


def _schedule(task: Any, options: dict[str, Any]) -> None:
    RecurringTask.objects.upsert(name="limits", task=task, interval=60, options=options)


_FORMS: dict[str, Callable[[Any, dict[str, Any]], object]] = {
    "using": lambda task, options: task.using(**options).schedule(),
    "delay": lambda task, options: task.using(**options).delay(),
    "apply_async": lambda task, options: task.apply_async(
        **{
            {"timeout": "time_limit", "soft_timeout": "soft_time_limit"}[name]: value
            for name, value in options.items()
        }
    ),
    "bulk": lambda task, options: task.using(**options).schedule_many([()]),
    "workflow": _workflow,
    "schedule": _schedule,
}


@pytest.mark.parametrize("form", _FORMS.values(), ids=_FORMS)
@pytest.mark.parametrize(
    ("task", "options"),
    [
        (limited, {"timeout": 3}),
        (limited, {"timeout": 5}),
        (limited, {"soft_timeout": 50}),
        (limited, {"soft_timeout": 9, "timeout": 8}),
        (unlimited, {"soft_timeout": 9, "timeout": 3}),
    ],
)
def test_a_soft_limit_that_the_hard_one_precedes_is_refused_at_every_call(
    form: Callable[[Any, dict[str, Any]], object], task: Any, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidOption, match="must be less than timeout="):
        form(task, options)
    assert not Task.objects.exists()
    assert not RecurringTask.objects.exists()


@pytest.mark.parametrize("form", _FORMS.values(), ids=_FORMS)
@pytest.mark.parametrize("options", [{"timeout": 6}, {"soft_timeout": 9.5}, {"timeout": 60}])
def test_limits_that_fit_those_of_the_decorator_are_accepted(
    form: Callable[[Any, dict[str, Any]], object], options: dict[str, Any]
) -> None:
    form(limited, options)
    assert Task.objects.exists() or RecurringTask.objects.exists()


@pytest.mark.parametrize(
    ("countdown", "eta", "seconds"),
    [
        (-5, None, None),
        (-5.5, 100, None),
        (timedelta(hours=-1), 100, None),
        (0, 100, 100),
        (0.0, None, None),
        (None, 100, 100),
        (60, 100, 60),
        (60, -100, 60),
        (None, -100, -100),
    ],
)
def test_countdown_and_eta_mean_what_they_mean_in_celery(
    countdown: Any, eta: float | None, seconds: float | None
) -> None:
    now = database_now()
    at = None if eta is None else now + timedelta(seconds=eta)
    tasks.noop.using(queue=QUEUE).apply_async(countdown=countdown, eta=at)
    row = Task.objects.get()
    expected = now + timedelta(seconds=seconds or 0)
    assert abs((row.run_at - expected).total_seconds()) < 30


@pytest.mark.parametrize("countdown", [True, "5", float("nan"), float("-inf"), float("inf")])
def test_a_countdown_that_is_no_number_is_refused(countdown: Any) -> None:
    with pytest.raises(InvalidOption, match="countdown"):
        tasks.noop.using(queue=QUEUE).apply_async(countdown=countdown)
