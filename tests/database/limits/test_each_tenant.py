"""One limit ``tenant:*`` applies to each tenant other than the default one, in what its own limit
does not contain.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.django import TestCase

from django_durable_tasks.choices import Status
from django_durable_tasks.limits import operator_limits
from django_durable_tasks.limits.backpressure import FastPath
from django_durable_tasks.models import DEFAULT_TENANT_ID, Task
from tests.database.limits.limited_tasks import claim, end, limit, release_waiting
from tests.factories import NOOP, QUEUE, a_node, a_tenant, many_tasks
from tests.process_state import new_process_state


def _under_way() -> Counter[int]:
    rows = Task.objects.filter(status__in=[Status.QUEUED, Status.RUNNING])
    return Counter(rows.values_list("tenant_id", flat=True))


class EachTenant(TestCase):
    """Draws the limits, and how many tasks each tenant has."""

    @settings(deadline=None, max_examples=20)
    @given(
        places=st.integers(1, 6),
        own=st.none() | st.integers(1, 9),
        numbers=st.lists(st.integers(0, 12), min_size=3, max_size=3),
        rounds=st.integers(1, 3),
    )
    def test_each_customer_has_the_places_and_the_default_tenant_is_not_limited(
        self, places: int, own: int | None, numbers: list[int], rounds: int
    ) -> None:
        a_node(concurrency=100, queues=[QUEUE])
        customers = [a_tenant().pk for _ in numbers]
        limit("tenant:*", places)
        if own is not None:
            limit(f"tenant:{customers[0]}", own)
        for tenant_id, number in zip(customers, numbers, strict=True):
            many_tasks(number, tenant_id=tenant_id)
        many_tasks(9)
        most = dict.fromkeys(customers, places) | {customers[0]: own or places}
        left = Counter(dict(zip(customers, numbers, strict=True)))
        claim()
        for _ in range(rounds):
            expected = {one: min(left[one], most[one]) for one in customers if left[one]}
            assert _under_way() == expected | {DEFAULT_TENANT_ID: 9}
            end(
                *Task.objects.queued()
                .exclude(tenant_id=DEFAULT_TENANT_ID)
                .values_list("pk", flat=True)
            )
            left.subtract(expected)
            release_waiting()
            claim()


@pytest.mark.django_db
def test_each_customer_has_the_rate(settings: Any) -> None:
    customers = [a_tenant().pk for _ in range(2)]
    settings.DURABLE_TASKS = {"LIMITS": {"tenant:*": {"rate": "3/d", "burst": 3}}}
    new_process_state()
    for tenant_id in customers:
        many_tasks(9, tenant_id=tenant_id)
    many_tasks(9)
    limit(f"tenant:{customers[0]}", 2)  # has no rate of its own, and uses two of three tokens
    claim()
    assert _under_way() == {customers[0]: 2, customers[1]: 3, DEFAULT_TENANT_ID: 9}
    waiting = {one.scope: one for one in operator_limits.limits_with_waiting_tasks()}
    assert waiting.keys() == {f"tenant:{tenant_id}" for tenant_id in customers}
    assert [
        (waiting[f"tenant:{one}"].source, waiting[f"tenant:{one}"].rate) for one in customers
    ] == [("OPERATOR", "3/d"), ("CODE", "3/d")]


@pytest.mark.django_db(transaction=True)
def test_a_task_of_a_customer_with_an_exact_limit_is_published_by_a_claim() -> None:
    customer = a_tenant().pk
    limit("tenant:*", 5)
    path = FastPath()
    assert not path.is_open(NOOP, QUEUE, customer)
    assert path.is_open(NOOP, QUEUE, DEFAULT_TENANT_ID)
