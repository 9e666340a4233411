"""Neither a hard time limit that ends a child process after the function has returned, nor the name of
the worker fails a run.
"""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
from billiard.exceptions import TimeLimitExceeded
from celery import Celery, current_app, signals

from django_durable_tasks.celery import worker_node
from django_durable_tasks.celery.live_runs import LiveRun, process_runs
from django_durable_tasks.choices import Status
from django_durable_tasks.models import Task
from tests.factories import NOOP, a_run, a_task

pytestmark = pytest.mark.django_db(transaction=True)


def _return_in_child(row: Task) -> None:
    """Let a child process share that the function of this run has returned."""
    live = LiveRun(a_run(row), lease=60.0, timeout=None, worker="worker@host", eager=False)
    child = os.fork()
    if not child:
        process_runs.share_returned(live)
        os._exit(0)
    os.waitpid(child, 0)


@pytest.mark.parametrize(
    ("has_returned", "status", "log", "crashes"),
    [(False, Status.FAILED, "FAILED", 0), (True, Status.PENDING, "LOST", 1)],
)
def test_a_hard_time_limit_is_a_failure_only_before_the_return(
    has_returned: bool, status: Status, log: str, crashes: int
) -> None:
    node = worker_node.place(60).node
    rows = [a_task(Status.RUNNING, node=node, max_attempts=1, max_crashes=2) for _ in range(2)]
    row, other = rows
    _return_in_child(row if has_returned else other)
    message = f"{row.pk}.{row.epoch - 1}.0"
    signals.task_failure.send(
        sender=current_app.tasks[NOOP], task_id=message, exception=TimeLimitExceeded(5)
    )
    row.refresh_from_db()
    assert (row.status, row.executions.get().status, row.crashes) == (status, log, crashes)
    other.refresh_from_db()
    assert other.status == Status.RUNNING


def test_the_name_of_a_worker_fits_into_its_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    copy = type("Copy", (worker_node._ThisProcess,), {})
    monkeypatch.setattr(worker_node, "_ThisProcess", copy)
    app = Celery("other", set_as_current=False)
    worker_node.on_worker_init(SimpleNamespace(app=app, hostname="\u00e9" * 300 + "@host"))
    assert 200 < len(worker_node.place(60).worker.encode()) <= 255
