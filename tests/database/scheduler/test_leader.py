"""The leadership thread wakes the loop once when it has acquired the lease."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest

from django_durable_tasks.models import SchedulerLease
from django_durable_tasks.scheduler.leader import Leader
from django_durable_tasks.store.clock import database_now

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_loop_is_woken_once_per_term() -> None:
    led: list[bool] = []
    leader = Leader(uuid.uuid4(), lambda: led.append(leader.leading()))
    leader.step()
    leader.step()
    assert led == [True]
    SchedulerLease.objects.update(expires_at=database_now() - timedelta(seconds=1))
    leader.step()
    assert led == [True]
    leader.step()
    assert led == [True, True]
    leader.resign()
    assert not leader.leading()


def test_a_follower_is_not_woken() -> None:
    first, led = Leader(uuid.uuid4()), list[bool]()
    first.step()
    second = Leader(uuid.uuid4(), lambda: led.append(True))
    second.step()
    assert (first.leading(), second.leading(), led) == (True, False, [])
    first.resign()
    second.step()
    assert (second.leading(), led) == (True, [True])
    second.resign()
