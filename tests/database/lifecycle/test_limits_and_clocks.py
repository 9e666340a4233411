"""Tokens come back by the database's clock: an instant that is a little old neither gives any nor takes any."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from django_durable_tasks.lifecycle import claims, letting_go
from django_durable_tasks.lifecycle.clock import database_now
from django_durable_tasks.models import LimitBucket
from tests.database.lifecycle.test_limits import NODE, claim, limit
from tests.factories import QUEUE, a_task, a_tenant, many_tasks

pytestmark = pytest.mark.django_db


def _refilled_at(scope: str) -> datetime:
    found = LimitBucket.objects.get(scope=scope).refilled_at
    assert found is not None
    return found


@pytest.mark.parametrize("scope", ["tenant:1", f"queue:{QUEUE}"])
def test_an_old_now_does_not_wind_a_bucket_back(scope: str) -> None:
    many_tasks(5, due=-100)
    a_task(due=-100, tenant=a_tenant())
    limit(scope, rate="1/d", burst=2)
    assert len(claim(2)) == 2
    claim()
    before, old = _refilled_at(scope), database_now() - timedelta(seconds=30)
    letting_go.let_go(old, 100)
    claims.claim(QUEUE, old, 100, NODE)
    assert _refilled_at(scope) == before


@pytest.mark.parametrize("parked", [True, False])
def test_tokens_come_back_by_a_clock_that_went_back(parked: bool) -> None:
    many_tasks(5)
    limit("tenant:1", rate="1/m", burst=1)
    assert len(claim()) == 1
    ahead = LimitBucket.objects.filter(scope="tenant:1")
    ahead.update(refilled_at=database_now() + timedelta(hours=1))
    if not parked:
        a_task()
        claim()
    letting_go.let_go(database_now(), 100)
    assert ahead.get().refilled_at <= database_now()
