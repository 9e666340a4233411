"""Results, records and replays of callbacks with unusual answers and errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery.exceptions import SoftTimeLimitExceeded
from django.db.backends.utils import CursorWrapper

from django_durable_tasks import Workflow, http_callback
from django_durable_tasks.choices import Status
from django_durable_tasks.contrib.callbacks.models import DeliveryAttempt
from django_durable_tasks.models import Task
from tests.delivery import deliver
from tests.factories import a_task
from tests.http_servers import Listener, answer, answering, listening
from tests.project.tasks import add

pytestmark = pytest.mark.django_db(transaction=True)
NAME = "django_durable_tasks.http_callback"
GIVEN = {"HTTP_ALLOW": ["127.0.0.0/8"], "HTTP_PORTS": [80, 443, *range(32_768, 61_000)]}


@pytest.fixture(autouse=True)
def local(settings: Any) -> None:
    """Open the local servers of the tests."""
    settings.DURABLE_TASKS = GIVEN


@pytest.fixture
def server() -> Iterator[Listener]:
    """A server that answers 200."""
    with listening(answering(answer())) as server:
        yield server


def test_an_answer_that_grows_when_it_is_encoded_is_cut(settings: Any) -> None:
    settings.DURABLE_TASKS = {**GIVEN, "RESULT_MAX_BYTES": 2_000}
    with listening(answering(answer(body=b"a" * 10 + b"\x01" * 4_000))) as server:
        task = a_task(Status.QUEUED, name=NAME, kwargs={"url": server.url()}, max_attempts=8)
        deliver(task)
    task.refresh_from_db()
    assert task.result is not None
    assert (task.status, task.result["truncated"]) == ("SUCCESS", True)
    assert task.result["body"].startswith("aaaaaaaaaa\x01")


def test_a_time_limit_while_the_request_is_recorded_causes_no_second_request(
    server: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute = CursorWrapper.execute

    def interrupted(self: CursorWrapper, sql: str, params: Any = None) -> Any:
        if sql.startswith("INSERT") and DeliveryAttempt._meta.db_table in sql:
            raise SoftTimeLimitExceeded
        return execute(self, sql, params)

    task = a_task(Status.QUEUED, name=NAME, kwargs={"url": server.url()}, max_attempts=8)
    with monkeypatch.context() as patched:
        patched.setattr(CursorWrapper, "execute", interrupted)
        deliver(task)
    task.refresh_from_db()
    assert (task.status, DeliveryAttempt.objects.count()) == ("SUCCESS", 0)
    assert len(server.requests) == 1


def test_an_edited_replay_of_a_step_keeps_its_references() -> None:
    workflow = Workflow("send-the-sum")
    total = workflow.add(add, 1, 2)
    body = {"total": total.result}
    workflow.add(http_callback, url="http://example.com/", body=body, after=[total])
    workflow.start()
    task = Task.objects.get(name=NAME)
    stored = task.kwargs["body"]
    Task.objects.unguarded().filter(pk=task.pk).update(status="FAILED")
    rows = Task.objects.filter(pk=task.pk)
    rows.replay(by="ann", kwargs={**task.kwargs, "url": "http://two.example.com/"})
    task.refresh_from_db()
    assert task.kwargs == {"url": "http://two.example.com/", "body": stored}
    assert isinstance(stored, dict), "the reference is resolved when the task starts"
