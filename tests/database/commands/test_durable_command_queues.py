"""``durable pause, resume, republish, prune``."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_durable_tasks.celery import inspect, publisher
from django_durable_tasks.choices import Status
from django_durable_tasks.models import QueueControl, Task
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.task_values import first_uuid7_of
from tests.database.commands.durable_command import durable, json_of
from tests.factories import QUEUE, a_node, a_paused_queue, a_task, many_tasks
from tests.messages import take_task_messages

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("of", ["task", "worker", "code", "pause", "nothing"])
@pytest.mark.parametrize("name", ["mial", "Mail", "mails"])
def test_only_a_queue_in_use_is_paused_unless_the_command_says_so(of: str, name: str) -> None:
    queue = {"code": min(inspect.declared_queues()), "nothing": "unknown"}.get(of, "mail")
    if of == "task":
        a_task(queue=queue)
    elif of == "worker":
        a_node(queues=[queue])
    elif of == "pause":
        a_paused_queue(queue)
    refused = durable("pause", name)
    assert (refused.code, QueueControl.objects.filter(name=name).exists()) == (2, False)
    assert f"No queue named {name!r} is in use." in refused.err
    assert ("Did you mean 'mail'?" in refused.err) == (queue == "mail")
    assert durable("pause", queue).code == (2 if of == "nothing" else 0)
    assert durable("pause", name, "--unused", "--reason", "before the deploy").code == 0
    assert QueueControl.objects.get(name=name).reason == "before the deploy"


# Republish ----------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_every_queued_task_of_a_queue_is_republished(settings: Any) -> None:
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "BATCH_SIZE": 2}
    rows = many_tasks(5, Status.QUEUED)
    many_tasks(2, Status.QUEUED, queue="other")
    a_task()
    a_task(Status.RUNNING)
    answer = durable("republish", "--queue", QUEUE, "--format", "json")
    assert answer.data == {
        "command": "republish",
        "republished": {QUEUE: 5},
        "rejected": {},
        "complete": True,
    }
    assert answer.err.splitlines() == ["2 of 5", "4 of 5", "5 of 5"]
    assert sorted((message.task_id, message.epoch) for message in take_task_messages(QUEUE)) == [
        (row.pk, row.epoch) for row in rows
    ]
    for row in Task.objects.filter(pk__in=[row.pk for row in rows]):
        assert (row.status, row.epoch, row.publish_count) == ("QUEUED", 1, 2)
    assert set(Task.objects.filter(queue="other").values_list("publish_count", flat=True)) == {1}


@pytest.mark.django_db(transaction=True)
def test_all_queues_are_republished_on_request() -> None:
    a_task(Status.QUEUED)
    a_task(Status.QUEUED, queue=f"{QUEUE}-other")
    assert json_of("republish", "--all", "--dry-run")["would_republish"] == {
        QUEUE: 1,
        f"{QUEUE}-other": 1,
    }
    assert take_task_messages(QUEUE) == []
    assert json_of("republish", "--all")["republished"] == {QUEUE: 1, f"{QUEUE}-other": 1}
    assert len(take_task_messages(QUEUE)) == len(take_task_messages(f"{QUEUE}-other")) == 1


def test_an_unavailable_broker_is_reported_and_the_tasks_stay_queued() -> None:
    row = a_task(Status.QUEUED)
    publisher.breaker.failed()
    answer = durable("republish", "--all", "--format", "json")
    assert answer.code == 1
    assert answer.data == {"command": "republish", "republished": {}, "complete": False}
    assert "The broker does not accept messages" in answer.err
    assert Task.objects.get(pk=row.pk).status == "QUEUED"


# Prune --------------------------------------------------------------------------------------------


def _old(number: int, status: Status = Status.SUCCESS) -> list[Task]:
    """Create tasks that were created and ended long before any retention."""
    long_ago = database_now() - timedelta(days=400 + list(Status).index(status))
    first = first_uuid7_of(int(long_ago.timestamp() * 1000))
    times: dict[str, Any] = {"created_at": long_ago, "completed_at": long_ago}
    return [a_task(status, id=uuid.UUID(int=first.int + at), **times) for at in range(number)]


def test_ended_tasks_are_pruned_in_batches_after_their_retention(settings: Any) -> None:
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "BATCH_SIZE": 2}
    _old(5)
    kept = [a_task(Status.SUCCESS).pk, _old(1, Status.FAILED)[0].pk, a_task().pk]
    assert json_of("prune", "--dry-run")["would_delete"]["SUCCESS"] == 5
    assert Task.objects.count() == 8
    answer = durable("prune", "--format", "json")
    assert answer.data == {"command": "prune", "deleted": 5}
    assert answer.err.splitlines() == ["2 deleted", "4 deleted"]
    assert set(Task.objects.values_list("pk", flat=True)) == set(kept)


def test_tasks_that_are_kept_indefinitely_are_not_counted(settings: Any) -> None:
    _old(1)
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "RETENTION": {"SUCCESS": None}}
    assert "SUCCESS" not in json_of("prune", "--dry-run")["would_delete"]
    assert json_of("prune")["deleted"] == 0


@pytest.mark.parametrize("operation", ["pause", "resume"])
def test_a_subcommand_of_a_queue_needs_as_many_statements_for_many_tasks(operation: str) -> None:
    def statements() -> int:
        with CaptureQueriesContext(connection) as captured:
            durable(operation, QUEUE)
        return len(captured)

    a_task()
    a_paused_queue(QUEUE)
    few = statements()
    many_tasks(50)
    QueueControl.objects.update(paused_at=database_now())
    assert statements() == few
