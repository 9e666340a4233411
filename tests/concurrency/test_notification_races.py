"""Two leaders, and changes of a setting while its messages are created."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from django.db import transaction

from django_durable_tasks.contrib.api import quotas
from django_durable_tasks.contrib.callbacks import endpoints
from django_durable_tasks.contrib.notifications import deliveries
from django_durable_tasks.contrib.notifications.models import (
    Alert,
    NotificationEvent,
    NotificationSetting,
)
from django_durable_tasks.exceptions import TransitionRefused
from django_durable_tasks.store.clock import database_now
from tests.concurrency.racing import ROUNDS, no_errors, on_another_connection, race
from tests.database.notifications.sending import (
    SETTINGS,
    a_setting,
    create_deliveries,
    delivery_tasks,
    events,
    types,
)
from tests.factories import an_unsaved_run, many_tasks
from tests.process_state import read_notification_settings


@pytest.fixture(autouse=True)
def notifications_are_on(settings: Any) -> None:
    """Record the events that settings select."""
    settings.DURABLE_TASKS = dict(SETTINGS)
    read_notification_settings()


def _happened(row: NotificationSetting, number: int) -> None:
    now = database_now()
    NotificationEvent.objects.unguarded().bulk_create(
        [
            NotificationEvent(setting_id=row.pk, type="task.failed", created_at=now, due_at=now)
            for _ in range(number)
        ]
    )


@pytest.mark.parametrize("digest", [None, 60])
def test_two_leaders_assign_each_event_to_one_delivery(digest: int | None) -> None:
    row = a_setting(digest=digest)
    for _ in range(ROUNDS):
        _happened(row, 30)
        create = partial(create_deliveries, limit=7)
        no_errors(race([create] * 4))
        while create():
            pass
        assigned = {str(event.delivery) for event in events()}
        assert "None" not in assigned
        sent = [task.kwargs["delivery"] for task in delivery_tasks()]
        assert len(sent) == len(set(sent))
        assert set(sent) == assigned


def test_a_setting_is_changed_while_its_messages_are_created() -> None:
    row = a_setting(digest=60)
    for number in range(ROUNDS):
        _happened(row, 20)
        create = partial(create_deliveries, limit=7)
        change = partial(deliveries.change_setting, row, digest=60 + number)
        no_errors(race([create, change, create]))
    while create_deliveries():
        pass
    assert all(event.delivery is not None for event in events())


@pytest.mark.postgresql
@pytest.mark.mariadb
def test_a_setting_that_a_transaction_has_locked_does_not_delay_others() -> None:
    locked, other = a_setting("locked", digest=60), a_setting("other", digest=60)
    _happened(locked, 20)
    _happened(other, 3)
    with transaction.atomic():
        deliveries.change_setting(locked, on_retry=True)
        create = partial(create_deliveries, limit=10)
        assert on_another_connection(create) == 3
        assert on_another_connection(create) == 0
    while create_deliveries(limit=10):
        pass
    assert [task.kwargs["setting"] for task in delivery_tasks()] == [other.pk, locked.pk]


def test_two_creations_of_one_name_leave_one_setting() -> None:
    answers = race([a_setting, a_setting])
    assert NotificationSetting.objects.count() == 1
    assert sum(isinstance(answer, TransitionRefused) for answer in answers) == 1


def test_two_leaders_open_and_close_an_alert_once() -> None:
    a_setting(on_failure=False, on_alert=True)
    many_tasks(1, "FAILED")
    race([partial(deliveries.watch_alerts, database_now())] * 4)
    assert Alert.objects.count() == 1
    assert types() == ["alert.began"]


def test_requests_that_are_refused_at_the_same_time_are_one_event() -> None:
    a_setting(on_failure=False, on_quota=True)
    no_errors(race([partial(quotas.refused, 1, "requests", "The rate is exceeded.")] * 6))
    assert types() == ["quota.reached"]


def test_an_endpoint_that_ends_deliveries_to_several_workers_is_one_event() -> None:
    a_setting(on_failure=False, on_endpoint=True)
    run = an_unsaved_run("call", "celery")
    stop = partial(endpoints.stopped, "https://example.com", 1, "410 Gone", run)
    no_errors(race([stop] * 6))
    assert types() == ["endpoint.gone"]
