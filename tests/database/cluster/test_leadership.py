"""At most one scheduler leads, by a lease on the database's clock; terms only increase."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest

from django_durable_tasks.cluster import nodes
from django_durable_tasks.models import SchedulerLease
from django_durable_tasks.models.cluster import lease_name
from django_durable_tasks.store.clock import database_now
from tests.waiting import until

pytestmark = pytest.mark.django_db
ANNA, BERT = uuid.UUID(int=1), uuid.UUID(int=2)


def _expire() -> None:
    SchedulerLease.objects.update(expires_at=database_now() - timedelta(seconds=1))


def _is_leader(holder: uuid.UUID, term: int) -> bool:
    mine = SchedulerLease.objects.filter(name=lease_name(), holder=holder, term=term)
    return mine.filter(expires_at__gte=database_now()).exists()


def test_a_free_lease_is_taken_once() -> None:
    term = nodes.take_lease(ANNA, 60)
    assert term is not None
    assert nodes.take_lease(BERT, 60) is None
    assert nodes.take_lease(ANNA, 60) is None
    assert _is_leader(ANNA, term)


def test_a_leader_renews_its_own_term_only() -> None:
    term = nodes.take_lease(ANNA, 60)
    assert term is not None
    assert nodes.renew_lease(ANNA, term, 60)
    assert not nodes.renew_lease(BERT, term, 60)
    assert not nodes.renew_lease(ANNA, term - 1, 60)
    assert not nodes.renew_lease(ANNA, term + 1, 60)


def test_an_expired_lease_is_taken_under_a_higher_term_and_not_renewed() -> None:
    first = nodes.take_lease(ANNA, 60)
    assert first is not None
    _expire()
    assert not nodes.renew_lease(ANNA, first, 60)
    assert not _is_leader(ANNA, first)
    second = nodes.take_lease(ANNA, 60)
    assert second == first + 1
    assert not nodes.renew_lease(ANNA, first, 60)


def test_a_lease_ends_by_the_clock_of_the_database() -> None:
    first = nodes.take_lease(ANNA, 0.05)
    assert first is not None
    assert until(lambda: nodes.take_lease(BERT, 60), within=30) == first + 1
    assert not nodes.renew_lease(ANNA, first, 60)


def test_a_released_lease_is_free_at_once_and_terms_only_increase() -> None:
    terms = []
    for number in range(5):
        holder = (ANNA, BERT)[number % 2]
        term = nodes.take_lease(holder, 60)
        assert term is not None
        terms.append(term)
        assert nodes.resign_lease(holder, term)
    assert terms == list(range(terms[0], terms[0] + 5))


def test_a_former_leader_cannot_release_the_lease_of_its_successor() -> None:
    old = nodes.take_lease(ANNA, 60)
    assert old is not None
    _expire()
    new = nodes.take_lease(BERT, 60)
    assert new is not None
    assert not nodes.resign_lease(ANNA, old)
    assert _is_leader(BERT, new)
