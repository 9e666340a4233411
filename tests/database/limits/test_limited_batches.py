"""Batches of tasks that limits apply to."""

from __future__ import annotations

from datetime import timedelta

import pytest

from django_durable_tasks.choices import Status
from django_durable_tasks.models import Task
from django_durable_tasks.store.clock import database_now
from tests.database.limits.limited_tasks import limit
from tests.database.transitions.transition_calls import PLACE
from tests.factories import NOOP, a_task, a_tenant, many_tasks, take_batch

pytestmark = pytest.mark.django_db(transaction=True)


def test_tasks_of_a_full_scope_do_not_delay_those_behind_them() -> None:
    limit("key:acme", 1)
    many_tasks(60, in_batch=True, limit_key="acme", due=-9)
    others = many_tasks(3, in_batch=True)
    runs = take_batch(4, PLACE)
    assert {row.pk for row in others} < {run.task_id for run in runs}
    assert len(runs) == 4
    assert Task.objects.running().filter(limit_key="acme").count() == 1
    assert Task.objects.waiting_for_limit().filter(waiting_for_limit="key:acme").count() == 59


def test_passes_behind_a_full_scope_do_not_exceed_the_other_limits() -> None:
    first, second = a_tenant(), a_tenant()
    limit(f"tenant:{first.pk}", 1)
    limit(f"tenant:{second.pk}", 2)
    many_tasks(20, in_batch=True, tenant=first, due=-9)
    many_tasks(20, in_batch=True, tenant=second)
    assert len(take_batch(10, PLACE)) == 3
    assert take_batch(10, PLACE) == []
    running = Task.objects.running()
    assert running.filter(tenant=first).count() == 1
    assert running.filter(tenant=second).count() == 2


def test_if_the_whole_task_is_limited_only_the_refused_tasks_of_the_batch_wait() -> None:
    limit(f"task:{NOOP}", 2)
    many_tasks(30, in_batch=True)
    assert len(take_batch(5, PLACE)) == 2
    assert Task.objects.waiting_for_limit().count() == 3


def test_an_expired_task_uses_no_token_of_a_rate() -> None:
    limit(f"task:{NOOP}", rate="1/h")
    late = a_task(in_batch=True, due=-9, expires_at=database_now() - timedelta(seconds=1))
    task = a_task(in_batch=True)
    assert [run.task_id for run in take_batch(5, PLACE)] == [task.pk]
    late.refresh_from_db()
    assert late.status == Status.EXPIRED
