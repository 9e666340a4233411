"""Tenants take turns in a claim, whatever their backlogs and priorities."""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Sequence

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.django import TestCase

from django_durable_tasks.models import DEFAULT_TENANT_ID, Task
from django_durable_tasks.states.demand import QueueDemand
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.tasks import claim as task_claim
from tests.database.limits.limited_tasks import NODE, claim, end
from tests.factories import QUEUE, a_task, a_tenant, many_tasks
from tests.process_state import new_process_state

pytestmark = pytest.mark.usefixtures("many_processes")

_MOST = 12
_CLAIMS = 5
"""The claims of a test between two looks for other tenants."""
_PAUSE = task_claim._LOOK_EVERY / _CLAIMS
_LOOK = re.compile(r"RECURSIVE heads \(queue, tenant_id|SELECT DISTINCT")


def _owners(ids: Sequence[uuid.UUID]) -> list[int]:
    of = dict(Task.objects.filter(pk__in=ids).values_list("pk", "tenant_id"))
    return [of[key] for key in ids]


class Turns(TestCase):
    """Draws tenants, the default one among them, their backlogs and priorities."""

    @settings(deadline=None, max_examples=6)
    @given(
        backlogs=st.lists(
            st.tuples(st.integers(1, _MOST), st.integers(0, 9), st.floats(-500, -1)),
            min_size=2,
            max_size=6,
        ),
        part=st.integers(1, 7),
        queues=st.integers(1, 2),
    )
    # The turns of two tenants use up the claim, so that the third one is not reached.
    @example(
        backlogs=[(7, 0, -244.5), (12, 0, -9.0), (10, 0, -1.0), (11, 0, -500.0)], part=2, queues=1
    )
    def test_a_tenant_waits_for_no_more_claims_than_the_others_need_for_one_turn(
        self, backlogs: list[tuple[int, int, float]], part: int, queues: int
    ) -> None:
        new_process_state()
        names = [QUEUE, "second"][:queues]
        tenants = [DEFAULT_TENANT_ID, *(a_tenant().pk for _ in backlogs[1:])]
        left = Counter[tuple[str, int]]()
        for tenant_id, (number, priority, due) in zip(tenants, backlogs, strict=True):
            for queue in names:
                many_tasks(number, tenant_id=tenant_id, priority=priority, due=due, queue=queue)
                left[queue, tenant_id] = number
        waited = Counter[tuple[str, int]]()
        most, now = -(-len(tenants) // part) + _CLAIMS, database_now()
        while left.total():
            demands = [QueueDemand(queue, part) for queue in names]
            found = task_claim.claim_of(demands, now, 100, NODE)
            now += _PAUSE
            ids = [message.task_id for message in found.messages]
            served = Counter(Task.objects.filter(pk__in=ids).values_list("queue", "tenant_id"))
            for queue in names:
                rest = sum(number for key, number in left.items() if key[0] == queue)
                number = sum(number for key, number in served.items() if key[0] == queue)
                assert number == min(part, rest), "turns leave no place of a claim free"
            for key in [key for key in left if left[key] and key[1] != DEFAULT_TENANT_ID]:
                waited[key] = 0 if served[key] else waited[key] + 1
                assert waited[key] < most, (key, waited)
            left -= served
            end(*ids)

    @settings(deadline=None, max_examples=5)
    @given(number=st.integers(2, 12), priority=st.integers(0, 9))
    def test_a_new_tenant_is_claimed_soon_behind_any_backlog(
        self, number: int, priority: int
    ) -> None:
        new_process_state()
        noisy, quiet = a_tenant(), a_tenant()
        many_tasks(400, tenant=noisy, priority=9, due=-500)
        end(*claim(number))
        own = a_task(tenant=quiet, priority=priority, due=-1)
        # However seldom the scheduler claims.
        assert own.pk in claim(number, database_now() + task_claim._LOOK_EVERY)


@pytest.mark.django_db
def test_priority_orders_the_tasks_of_one_tenant() -> None:
    new_process_state()
    one, two = a_tenant(), a_tenant()
    rows = {
        (tenant.pk, priority): a_task(tenant=tenant, priority=priority)
        for tenant in (one, two)
        for priority in (0, 5, 9)
    }
    assert set(claim(2)) == {rows[one.pk, 9].pk, rows[two.pk, 9].pk}
    assert set(claim(2)) == {rows[one.pk, 5].pk, rows[two.pk, 5].pk}


@pytest.mark.django_db
def test_more_tenants_than_one_look_returns_are_served_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(task_claim, "_TOGETHER", 2)
    new_process_state()
    tenants = [a_tenant() for _ in range(5)]
    for tenant in tenants:
        many_tasks(9, tenant=tenant)
    served = [owner for _ in range(6) for owner in _owners(claim(2))]
    assert set(served) == {tenant.pk for tenant in tenants}


@pytest.mark.django_db
def test_future_tasks_of_a_tenant_take_no_turn() -> None:
    new_process_state()
    early, late = a_tenant(), a_tenant()
    many_tasks(5, tenant=late, due=500)
    many_tasks(5, tenant=early, due=-1, priority=3)
    assert _owners(claim(4)) == [early.pk] * 4


@pytest.mark.django_db
@pytest.mark.parametrize(("customers", "looks"), [(0, 0), (1, 2), (3, 2)])
def test_a_backlog_of_one_tenant_pays_for_a_look_in_few_claims(customers: int, looks: int) -> None:
    new_process_state()
    owners = [a_tenant() for _ in range(customers)]
    many_tasks(60, tenant_id=owners[0].pk if owners else DEFAULT_TENANT_ID)
    now, found = database_now(), 0
    end(*claim(5, now))
    for number in range(1, 2 * _CLAIMS + 1):
        with CaptureQueriesContext(connection) as queries:
            ids = claim(5, now + number * _PAUSE)
        found += sum(_LOOK.search(one["sql"]) is not None for one in queries)
        assert len(ids) == 5
        end(*ids)
    assert found == looks
