"""At most one scheduler of a region leads, by a lease on the database's clock; terms only increase.
A leader monitors the nodes of its region only.
"""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest

from django_durable_tasks.choices import Status
from django_durable_tasks.cluster import nodes
from django_durable_tasks.conf import InvalidSetting, read
from django_durable_tasks.models import Node, NodeKind, SchedulerLease
from django_durable_tasks.models.cluster import lease_name, region_of
from django_durable_tasks.scheduler import reap_dead_nodes
from django_durable_tasks.scheduler.leader import Leader
from django_durable_tasks.store.clock import after, database_now
from tests.database.commands.durable_command import durable
from tests.factories import a_node, a_task
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)
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


def test_the_loop_is_woken_once_per_term() -> None:
    led: list[bool] = []
    leader = Leader(uuid.uuid4(), lambda: led.append(leader.leading()))
    leader.step()
    leader.step()
    assert led == [True]
    _expire()
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


@pytest.fixture
def _europe(settings: Any) -> None:
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "REGION": "eu"}


def test_the_lease_of_the_default_region_keeps_its_name() -> None:
    assert (lease_name(), region_of(lease_name())) == ("leader", "")


@pytest.mark.usefixtures("_europe")
def test_each_region_has_its_own_leader() -> None:
    SchedulerLease.objects.filter(name="leader").update(holder=BERT, expires_at=after(60))
    term = nodes.take_lease(ANNA, 60)
    assert term == 1
    assert nodes.take_lease(BERT, 60) is None
    assert nodes.renew_lease(ANNA, term, 60)
    assert set(SchedulerLease.objects.values_list("name", "holder")) == {
        ("leader", BERT),
        ("leader@eu", ANNA),
    }
    assert nodes.resign_lease(ANNA, term)
    assert nodes.take_lease(BERT, 60) == 2
    assert region_of("leader@eu") == "eu"


@pytest.mark.usefixtures("_europe")
def test_nodes_are_monitored_in_their_own_region_only(settings: Any) -> None:
    mine, there = a_node(region="eu"), a_node()
    led = SchedulerLease.objects.filter(name="leader")
    led.update(expires_at=database_now() + timedelta(seconds=60))
    nodes.register(ANNA, "a", NodeKind.WORKER)
    assert set(nodes.beats()) == {mine.pk, ANNA}
    departed = a_node(region="us", stopped=3_600)
    a_task(Status.RUNNING, node=departed.pk)
    assert reap_dead_nodes.nodes_with_orphaned_runs(database_now()) == {}
    Node.objects.filter(pk=departed.pk).update(region="eu")
    assert reap_dead_nodes.nodes_with_orphaned_runs(database_now()) == {departed.pk: False}
    assert there.pk not in nodes.beats()
    led.update(expires_at=database_now() - timedelta(hours=1))
    assert there.pk in nodes.beats(), "its region has no leader"


@pytest.mark.usefixtures("_europe")
def test_verify_accepts_a_region_and_a_default_lease_without_leader() -> None:
    node = a_node(NodeKind.SCHEDULER, region="eu", started_at=database_now() - timedelta(hours=1))
    assert nodes.take_lease(node.pk, 60) is not None
    answer = durable("verify", "--format", "json")
    assert [one for one in answer.data["findings"] if one["check"] in ("seed-rows", "leases")] == []


@pytest.mark.usefixtures("_europe")
def test_verify_inserts_the_missing_lease_of_a_region() -> None:
    SchedulerLease.objects.all().delete()
    assert any(
        one["check"] == "seed-rows"
        for one in durable("verify", "--format", "json").data["findings"]
    )
    durable("verify", "--repair", "--yes")
    assert SchedulerLease.objects.filter(name="leader@eu").exists()


@pytest.mark.parametrize("region", ["a@b", "x" * 51, None, 3])
def test_an_invalid_region_name_is_refused(region: object) -> None:
    with pytest.raises(InvalidSetting, match="REGION"):
        read({"REGION": region})
