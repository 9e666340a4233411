"""``django_durable_tasks.plain_celery_task`` sends only tasks that the settings allow, always under
the same Celery id.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from celery import current_app

from django_durable_tasks.choices import Status
from django_durable_tasks.internal_tasks import CeleryTaskNotAllowed
from django_durable_tasks.models import DeadLetter, Task
from tests.delivery import deliver
from tests.factories import QUEUE, a_task

pytestmark = pytest.mark.django_db(transaction=True)
PLAIN_CELERY_TASK = "django_durable_tasks.plain_celery_task"
SENT = {
    "task": "shop.tasks.plain",
    "args": [1],
    "kwargs": {"b": 2},
    "options": {"queue": QUEUE, "headers": {"x": 1}},
}


def _carry() -> Task:
    row = a_task(Status.QUEUED, name=PLAIN_CELERY_TASK, kwargs=SENT)
    deliver(row)
    row.refresh_from_db()
    return row


def _messages() -> list[Any]:
    app, found = current_app._get_current_object(), []
    with app.connection_for_read() as connection, connection.channel() as channel:
        app.amqp.queues[QUEUE](channel).declare()
        while (message := channel.basic_get(QUEUE, no_ack=True)) is not None:
            found.append(message)
    return found


def test_the_message_is_sent_and_its_id_is_stored_with_the_task(settings: Any) -> None:
    settings.DURABLE_TASKS = {"PLAIN_CELERY_TASKS": ["shop.tasks.plain"]}
    row = _carry()
    [message] = _messages()
    assert row.result is not None
    assert (row.status, row.result["status"], row.result["task"]) == (
        "SUCCESS",
        "SENT",
        "shop.tasks.plain",
    )
    assert message.headers["id"] == row.result["celery_id"]
    assert (message.headers["task"], message.headers["x"]) == ("shop.tasks.plain", 1)
    assert json.loads(message.body)[:2] == [[1], {"b": 2}]


def test_another_attempt_sends_the_same_id(settings: Any) -> None:
    settings.DURABLE_TASKS = {"PLAIN_CELERY_TASKS": ["shop.tasks.plain"]}
    row = _carry()
    Task.objects.unguarded().filter(pk=row.pk).update(
        status="QUEUED", epoch=5, due_at=row.run_at, completed_at=None
    )
    row.refresh_from_db()
    deliver(row)
    assert len({message.headers["id"] for message in _messages()}) == 1


def test_a_task_that_the_settings_do_not_allow_ends_in_a_dead_letter() -> None:
    with pytest.raises(CeleryTaskNotAllowed):
        _carry()
    row = Task.objects.get()
    assert _messages() == []
    assert (row.status, row.failures) == ("FAILED", 1)
    assert (
        "'shop.tasks.plain' is not in DURABLE_TASKS['PLAIN_CELERY_TASKS']"
        in DeadLetter.objects.get().error_message
    )
