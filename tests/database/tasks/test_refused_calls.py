"""Calls with a foreign id, two conflicting keys or an impossible lease are refused or resolved
without affecting other tasks.
"""

from __future__ import annotations

import pytest

from django_durable_tasks.exceptions import IdempotencyConflict, InvalidOption
from django_durable_tasks.models import Task, Tenant
from django_durable_tasks.rules.states import Status
from tests.factories import QUEUE, a_task, a_tenant
from tests.project import tasks

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
