"""Plain messages of a durable task are refused, or create one task for each message."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import current_app
from celery.exceptions import Ignore
from celery.result import AsyncResult
from django.conf import settings as django_settings
from django.db import transaction

from django_durable_tasks.celery.plain_messages import task_id_of
from django_durable_tasks.celery.result import DurableResult
from django_durable_tasks.exceptions import PlainMessageRefused
from django_durable_tasks.models import Task
from tests.celery_settings import result_backend
from tests.messages import take_messages
from tests.project.tasks import add

pytestmark = pytest.mark.django_db(transaction=True)


def _deliver(*args: Any, message: str | None = None, **request: Any) -> Any:
    """Deliver a message with a name and arguments that belongs to no task."""
    task: Any = add
    message = message or str(uuid.uuid4())
    task.push_request(
        id=message, called_directly=False, is_eager=False, args=args, kwargs={}, **request
    )
    try:
        return task(*args)
    finally:
        task.pop_request()


@pytest.fixture(autouse=True)
def _empty_queue() -> None:
    """Remove messages of other tests."""
    take_messages(str(django_settings.CELERY_TASK_DEFAULT_QUEUE))


@pytest.fixture
def adopting(settings: Any) -> None:
    """Accept plain messages in this process."""
    settings.DURABLE_TASKS = {"ACCEPT_PLAIN_MESSAGES": True}


@pytest.fixture
def backend() -> Iterator[None]:
    """Configure a result backend of Celery."""
    task: Any = add
    with result_backend("cache+memory://"):
        task._backend = None
        yield
    task._backend = None


def test_a_plain_message_is_refused_and_its_sender_gets_the_error(backend: None) -> None:
    message = str(uuid.uuid4())
    with pytest.raises(PlainMessageRefused, match="ACCEPT_PLAIN_MESSAGES"):
        _deliver(1, 2, message=message)
    assert not Task.objects.exists()
    result = AsyncResult(message, backend=current_app.backend)
    assert result.state == "FAILURE"
    assert "PlainMessageRefused" in repr(result.result)


def test_a_plain_message_creates_one_task_however_often_it_is_delivered(adopting: None) -> None:
    message = str(uuid.uuid4())
    for _ in range(3):
        with pytest.raises(Ignore, match=message):
            _deliver(1, 2, message=message)
    row = Task.objects.get()
    assert (str(row.pk), row.name, row.args, row.kwargs) == (message, add.name, [1, 2], {})
    assert isinstance(add.AsyncResult(message), DurableResult)  # type: ignore[attr-defined]
    assert DurableResult(message).task == row
    assert [one.headers["durable_message"] for one in take_messages(row.queue)] == [
        f"{message}.1.1"
    ]


def test_an_id_that_is_not_a_uuid_identifies_one_task_too(adopting: None) -> None:
    for _ in range(2):
        with pytest.raises(Ignore):
            _deliver(1, 2, message="nightly-7")
    assert Task.objects.get().pk == task_id_of("nightly-7")
    assert task_id_of("nightly-8") != task_id_of("nightly-7")


def test_limits_and_expiry_of_the_message_are_kept(adopting: None) -> None:
    expires = datetime.now(UTC) + timedelta(hours=1)
    with pytest.raises(Ignore):
        _deliver(1, 2, timelimit=(60, 50), expires=expires.replace(tzinfo=None).isoformat())
    row = Task.objects.get()
    assert row.expires_at == expires
    assert row.options is not None
    assert (row.options["timeout"], row.options["soft_timeout"]) == (60, 50)


@pytest.mark.parametrize("part", ["callbacks", "errbacks", "chain", "chord"])
def test_a_step_of_a_canvas_runs_as_a_plain_task(adopting: None, part: str) -> None:
    rest: dict[str, Any] = {part: [{"task": "shop.next"}]}
    assert _deliver(1, 2, **rest) == 3
    assert not Task.objects.exists()


def test_arguments_that_do_not_match_the_signature_are_refused(
    adopting: None, backend: None
) -> None:
    message = str(uuid.uuid4())
    with pytest.raises(PlainMessageRefused, match="cannot become a task"):
        _deliver(1, 2, 3, message=message)
    assert not Task.objects.exists()
    assert AsyncResult(message, backend=current_app.backend).state == "FAILURE"


def test_delay_on_commit_creates_the_task_with_the_transaction() -> None:
    task: Any = add
    with transaction.atomic():
        results = [
            task.delay_on_commit(1, 2),
            task.apply_async_on_commit((3,), {"right": 4}, countdown=60),
        ]
        assert Task.objects.count() == 2
        transaction.set_rollback(True)
    assert not Task.objects.exists()
    assert all(isinstance(result, DurableResult) for result in results)
    assert task.apply_async_on_commit((1, 2), queue="post").task.queue == "post"


def test_on_commit_uses_the_default_transaction_if_tasks_are_in_another_database(
    settings: Any,
) -> None:
    task: Any = add
    settings.DURABLE_TASKS = {"DATABASE": "tasks"}
    with transaction.atomic():
        assert task.delay_on_commit(1, 2) is None
        assert task.apply_async_on_commit((1, 2), countdown=60) is None
        settings.DURABLE_TASKS = {}
        assert not Task.objects.exists()
    assert Task.objects.count() == 2
