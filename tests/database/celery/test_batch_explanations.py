"""What the explanation of a task that runs in batches says: the command line and the admin show it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from django_durable_tasks import registry
from django_durable_tasks.celery.inspect import sentences
from django_durable_tasks.cluster import queues
from django_durable_tasks.models import Task
from django_durable_tasks.tasks import attempts, batches
from tests.database.commands.durable_command import durable
from tests.database.limits.limited_tasks import limit
from tests.database.transitions.transition_calls import CRASH, PLACE
from tests.factories import QUEUE
from tests.project import batched

pytestmark = pytest.mark.django_db(transaction=True)
NAME = batched.note.name


@pytest.fixture
def task(tmp_path: Path) -> Task:
    """A due task that runs in batches."""
    row = batched.note.using(queue=QUEUE).schedule(str(tmp_path / "notes"), 1)
    found: Task = Task.objects.get(pk=row.pk)
    return found


def _take() -> int:
    run_ids = batches.run_ids_of(bytes(batches.TOKEN_BYTES), 5)
    return len(batches.take(QUEUE, NAME, run_ids, PLACE))


def _explained(task: Task) -> str:
    task.refresh_from_db()
    return " ".join(sentence.text for sentence in sentences(task))


def test_the_state_of_the_batch_message_is_explained(task: Task) -> None:
    assert "A batch message was published" in _explained(task)
    batches.message_not_published([(QUEUE, NAME)], 30)
    assert "The broker refused the batch message" in _explained(task)
    batches.message_received(QUEUE, NAME, number=1)
    assert "No batch message is outstanding" in _explained(task)
    assert "waits for a batch" in durable("show", task.pk).out


def test_a_paused_queue_a_missing_worker_and_an_unknown_function_are_explained(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues.pause(QUEUE, by="bob", reason="move")
    assert f"Queue {QUEUE} was paused by bob (move)" in _explained(task)
    queues.resume(QUEUE, by="bob", reason="")
    assert f"No live worker listens on queue {QUEUE}" in _explained(task)
    assert "No durable task of that name" not in _explained(task)
    known: dict[str, Any] = {name: one for name, one in registry._tasks.items() if name != NAME}
    monkeypatch.setattr(registry, "_tasks", known)
    assert "No durable task of that name is registered in this process" in _explained(task)


def test_the_limit_for_which_a_task_of_a_batch_waits_is_explained(task: Task) -> None:
    limit(f"task:{NAME}", 1)
    batched.note.using(queue=QUEUE, priority=9).schedule("unused", 2)
    assert _take() == 1
    task.refresh_from_db()
    assert f"task:{NAME}" in _explained(task)
    assert "waits for a batch" not in _explained(task)


def test_a_task_that_runs_alone_after_a_crash_is_explained(task: Task) -> None:
    assert "runs alone" not in _explained(task)
    assert _take() == 1
    attempts.end_runs(Task.objects.filter(pk=task.pk), lambda _: CRASH)
    assert "Its worker died during a batch, so it runs alone" in _explained(task)


def test_a_task_with_a_message_of_its_own_by_its_options_has_not_crashed(tmp_path: Path) -> None:
    row = batched.note.using(queue=QUEUE, timeout=5).schedule(str(tmp_path / "notes"), 1)
    assert "runs alone" not in _explained(Task.objects.get(pk=row.pk))
