"""Limits together with operators, expiry and overlap: waiting tasks return at the right time and
hide no others.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from django_durable_tasks.choices import Status
from django_durable_tasks.limits import overlap, release
from django_durable_tasks.models import Task
from django_durable_tasks.models.fields import DatabaseNow
from django_durable_tasks.models.tasks import NEVER
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.tasks import claim as task_claim
from django_durable_tasks.tasks import operator_actions
from tests.database.limits.limited_tasks import claim, end, limit, limited_tasks, release_waiting
from tests.factories import NOOP, QUEUE, a_task
from tests.project import limited

__all__ = ["limited_tasks"]
pytestmark = pytest.mark.django_db
SCOPE = f"task:{NOOP}"


def test_a_task_that_an_operator_rescheduled_to_now_is_due_at_once_when_it_is_released() -> None:
    limit(SCOPE, 1)
    first, early = a_task(due=-9), a_task(due=3_600)
    Task.objects.unguarded().filter(pk=early.pk).update(due_at=DatabaseNow())
    assert claim() == [first.pk]
    assert Task.objects.get(pk=early.pk).waiting_for_limit == SCOPE
    end(first.pk)
    assert release_waiting() == 1
    assert claim() == [early.pk]


def test_expired_waiting_tasks_take_no_capacity_from_those_behind_them() -> None:
    limit(SCOPE, 1)
    first, late, live = a_task(due=-9), a_task(due=-8), a_task(due=-7)
    assert claim() == [first.pk]
    Task.objects.unguarded().filter(pk=late.pk).update(
        expires_at=database_now() - timedelta(seconds=1)
    )
    end(first.pk)
    release.release_waiting(database_now(), 10)
    assert Task.objects.get(pk=late.pk).status == Status.EXPIRED
    assert claim() == [live.pk]


def test_a_waiting_task_keeps_its_overlap_key_and_the_task_behind_it_waits() -> None:
    limit(SCOPE, 0)
    waiting, held = a_task(due=-9, overlap_key="one"), a_task(due=-8, overlap_key="one")
    assert claim(1) == []
    Task.objects.unguarded().filter(pk=held.pk).update(due_at=NEVER, waiting_for_limit=None)
    assert Task.objects.get(pk=waiting.pk).waiting_for_limit == SCOPE
    assert overlap.release(1) == 0
    assert Task.objects.waiting_for_overlap().get() == held


def test_a_claimed_task_no_longer_names_a_limit() -> None:
    row = a_task(due=-9)
    Task.objects.unguarded().filter(pk=row.pk).update(waiting_for_limit=SCOPE)
    assert claim() == [row.pk]
    assert Task.objects.get(pk=row.pk).waiting_for_limit is None
    other = a_task(due=-9)
    Task.objects.unguarded().filter(pk=other.pk).update(waiting_for_limit=SCOPE)
    task_claim.claim_these([other.pk], database_now(), other.pk)
    assert Task.objects.get(pk=other.pk).waiting_for_limit is None


@pytest.mark.usefixtures("limited_tasks")
def test_a_replay_with_other_arguments_counts_under_their_key() -> None:
    row = limited.two_for_each.using(queue=QUEUE).schedule("acme")
    assert row.limit_key == "acme"
    Task.objects.unguarded().filter(pk=row.pk).update(
        status=Status.FAILED, due_at=None, completed_at=database_now()
    )
    operator_actions.replay_edited(Task.objects.filter(pk=row.pk), by="anna", args=["zenith"])
    assert Task.objects.get(pk=row.pk).limit_key == "zenith"
