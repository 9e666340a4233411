"""Six schedulers compete for the lease repeatedly: each term has one leader."""

from __future__ import annotations

import uuid
from collections import Counter
from datetime import UTC, datetime
from functools import partial
from typing import Any

from django_durable_tasks.cluster import nodes
from django_durable_tasks.models import SchedulerLease
from django_durable_tasks.models.cluster import lease_name
from tests.concurrency.racing import ROUNDS, no_errors, race


def test_each_term_has_one_leader() -> None:
    won: Counter[int] = Counter()
    for _ in range(ROUNDS):
        SchedulerLease.objects.update(expires_at=datetime(2000, 1, 1, tzinfo=UTC))
        holders = [uuid.uuid4() for _ in range(6)]
        terms = no_errors(race([partial(nodes.take_lease, holder, 60.0) for holder in holders]))
        winners = [
            (holder, term) for holder, term in zip(holders, terms, strict=True) if term is not None
        ]
        assert len(winners) == 1, (terms, list(SchedulerLease.objects.values()))
        lease = SchedulerLease.objects.get(name=lease_name())
        assert (lease.holder, lease.term) == winners[0]
        won[winners[0][1]] += 1
    assert set(won.values()) == {1}
    assert sorted(won) == list(range(min(won), min(won) + ROUNDS))


def test_the_lease_of_a_new_region_is_inserted_once_and_acquired_once(settings: Any) -> None:
    for number in range(ROUNDS):
        settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "REGION": f"r{number}"}
        holders = [uuid.uuid4() for _ in range(6)]
        terms = no_errors(race([partial(nodes.take_lease, holder, 60.0) for holder in holders]))
        winners = [
            (holder, term) for holder, term in zip(holders, terms, strict=True) if term is not None
        ]
        lease = SchedulerLease.objects.get(name=f"leader@r{number}")
        assert winners == [(lease.holder, 1)], (terms, list(SchedulerLease.objects.values()))
    SchedulerLease.objects.exclude(name=lease_name()).delete()


def test_a_concurrent_release_and_acquisition_leave_one_leader() -> None:
    first = uuid.uuid4()
    term = nodes.take_lease(first, 60)
    assert term is not None, list(SchedulerLease.objects.values())
    rivals = [uuid.uuid4() for _ in range(5)]
    answers = no_errors(
        race(
            [
                partial(nodes.resign_lease, first, term),
                *(partial(nodes.take_lease, rival, 60.0) for rival in rivals),
            ]
        )
    )
    assert answers[0]
    assert sum(found is not None for found in answers[1:]) <= 1
    assert SchedulerLease.objects.get(name=lease_name()).term in (term, term + 1)
