"""Digests and quiet hours: when messages are due, and what a crash between two steps leaves."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta
from typing import Any

import pytest
from django.db import transaction

from django_durable_tasks.choices import EventType
from django_durable_tasks.contrib.notifications import deliveries
from django_durable_tasks.contrib.notifications.deliveries import StartedDeliveries
from django_durable_tasks.contrib.notifications.models import NotificationEvent, NotificationSetting
from django_durable_tasks.registry import NOTIFICATION_TASK
from django_durable_tasks.store import tables
from django_durable_tasks.store.clock import database_now
from tests.database.notifications.sending import (
    a_webhook,
    create_deliveries,
    delivery_tasks,
    events,
    result,
    run,
    send_all,
)
from tests.http_servers import Listener, answer, answering, listening

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def server() -> Iterator[Listener]:
    """A server that answers 200."""
    with listening(answering(answer())) as server:
        yield server


def _happened(row: NotificationSetting, number: int, due: float = -1.0) -> None:
    now = database_now()
    at = now + timedelta(seconds=due)
    tables.unguarded(NotificationEvent).bulk_create(
        [
            NotificationEvent(
                setting_id=row.pk,
                type=EventType.FAILED,
                subject=f"billing.task{number % 3}",
                data={"task_name": f"billing.task{number % 3}", "task_id": str(number)},
                created_at=now,
                due_at=at,
            )
            for number in range(number)
        ]
    )


def _body(server: Listener, number: int = -1) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(server.body(number))
    return found


def test_the_events_of_a_period_are_one_message_of_limited_size(server: Listener) -> None:
    row = a_webhook(server.url(), digest=60)
    _happened(row, 1_200)
    while create_deliveries():
        pass
    (task,) = delivery_tasks()
    assert result(run(task))["events"] == 1_200
    body = _body(server)
    assert body["type"] == "notification.digest"
    assert body["data"]["count"] == 1_200
    assert {one["count"] for one in body["data"]["counts"]} == {400}
    assert len(body["data"]["events"]) == 20
    assert len(server.body()) < 20_000


def test_a_crash_while_a_digest_is_collected_loses_and_repeats_nothing(server: Listener) -> None:
    row = a_webhook(server.url(), digest=60)
    _happened(row, 1_200)
    assert create_deliveries() == 500
    with transaction.atomic():  # the leader dies before the COMMIT
        assert create_deliveries() == 500
        transaction.set_rollback(True)
    assert delivery_tasks() == []
    assert create_deliveries() == 500  # the next leader
    assert create_deliveries() == 200
    (task,) = delivery_tasks()
    assert result(run(task))["events"] == 1_200
    row.refresh_from_db()
    assert row.collecting is None


def test_a_digest_that_was_begun_is_sent_although_the_setting_has_none_any_more(
    server: Listener,
) -> None:
    row = a_webhook(server.url(), digest=60)
    _happened(row, 700)
    assert create_deliveries() == 500
    deliveries.change_setting(row, digest=None)
    assert create_deliveries() == 200
    (task,) = delivery_tasks()
    assert result(run(task))["events"] == 700


def test_events_that_commit_late_are_sent_in_a_message_of_their_own(server: Listener) -> None:
    row = a_webhook(server.url(), digest=60)
    _happened(row, 2)
    send_all()
    _happened(row, 1)
    send_all()
    assert [_body(server, number)["data"]["count"] for number in (0, 1)] == [2, 1]


def test_the_events_of_one_setting_do_not_wait_for_those_of_another(server: Listener) -> None:
    slow, fast = a_webhook(server.url(), "digest", digest=60), a_webhook(server.url(), "each")
    _happened(slow, 5, due=3_600)
    _happened(fast, 2)
    assert create_deliveries() == 2
    assert len(delivery_tasks()) == 2


def test_a_flood_of_one_setting_delays_no_other_and_fills_no_queue(server: Listener) -> None:
    """One request of a tenant created 24,700 deliveries, and those of others waited 15 s."""
    flood, other = a_webhook(server.url(), "flood"), a_webhook(server.url(), "other")
    _happened(flood, 700, due=-60)
    _happened(other, 2)
    started, now = StartedDeliveries(), database_now()
    while create_deliveries(now, 100, started):
        pass
    per_setting = Counter(task.kwargs["setting"] for task in delivery_tasks())
    assert per_setting == {flood.pk: 20, other.pk: 2}
    postponed = NotificationEvent.objects.filter(delivery__isnull=True)
    assert postponed.filter(due_at__gt=now).count() == 680
    later = now + timedelta(minutes=1)
    while create_deliveries(later, 100, started):
        pass
    assert len(delivery_tasks()) == 22
    # One that was attempted may wait for hours, and leaves its place to another one.
    for minute in range(2, 40):
        tables.tasks().filter(name=NOTIFICATION_TASK).update(attempts=1)
        while create_deliveries(now + timedelta(minutes=minute), 100, started):
            pass
    assert len({task.kwargs["delivery"] for task in delivery_tasks()}) == 702
    assert not postponed.exists()


def test_nothing_is_sent_in_quiet_hours(server: Listener) -> None:
    now = datetime(2026, 3, 7, 23, 30, tzinfo=UTC)
    row = a_webhook(
        server.url(), quiet_from=time(22), quiet_until=time(7), time_zone="Europe/Berlin"
    )
    _happened(row, 2)
    tables.unguarded(NotificationEvent).update(due_at=now - timedelta(seconds=1))
    assert create_deliveries(now) == 2
    assert delivery_tasks() == []
    assert {event.due_at for event in events()} == {datetime(2026, 3, 8, 6, tzinfo=UTC)}
    assert create_deliveries(now + timedelta(hours=6, minutes=31)) == 2
    assert len(delivery_tasks()) == 2


def test_a_change_of_the_times_sends_what_waited_for_the_old_ones(server: Listener) -> None:
    row = a_webhook(server.url(), digest=3_600)
    _happened(row, 2, due=3_000)
    assert create_deliveries() == 0
    deliveries.change_setting(row, digest=None)
    assert create_deliveries() == 2
