"""Lists, pages and actions need the same number of statements for few rows and for many."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_durable_tasks import Workflow
from django_durable_tasks.choices import Status
from django_durable_tasks.models import DeadLetter, Limit, OccurrenceRecord, Task
from tests.database.admin.full_tenant import MODELS, a_full_tenant, shared_rows
from tests.database.admin.site import act, list_of, page_of
from tests.database.admin.workflow_runs import a_diamond
from tests.database.dependencies.worker_and_leader import of
from tests.database.recurring.schedules import a_schedule
from tests.factories import a_log_row, a_node, a_paused_queue, a_task, many_tasks
from tests.project.tasks import noop

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("open_notifications")]
_number = itertools.count(1)


def _statements(ann: Client, address: str) -> list[str]:
    ann.get(address)
    with CaptureQueriesContext(connection) as captured:
        assert ann.get(address).status_code == 200
    return [query["sql"] for query in captured]


def _grow() -> None:
    """Create a row of each kind, of another tenant and for another queue."""
    name = f"more{next(_number)}"
    a_full_tenant(name)
    a_node()
    a_paused_queue(name)
    Limit.objects.create(scope=f"queue:{name}", max_concurrency=1)
    a_task(Status.RUNNING, queue=name)


def test_a_list_needs_as_many_statements_for_many_rows(
    ann: Client, subtests: pytest.Subtests
) -> None:
    addresses = {model: list_of(model) for model in MODELS}
    addresses["overview"] = reverse("admin:django_durable_tasks_overview")
    shared_rows()
    _grow()
    few = {model: _statements(ann, address) for model, address in addresses.items()}
    for _ in range(9):
        _grow()
    for model, address in addresses.items():
        with subtests.test(model):
            assert len(_statements(ann, address)) == len(few[model])
            # The list of limits reads their usage, as `durable limit list` does.
            assert model == "overview" or len(few[model]) <= 17
            if model in ("task", "taskexecutionlog"):
                assert "kwargs" not in "".join(few[model])
                assert "traceback" not in "".join(few[model])


def _attempts(numbers: tuple[int, ...]) -> Iterator[str]:
    task = a_task(Status.FAILED)
    for number in numbers:
        for _ in range(number):
            a_log_row(task, traceback="Traceback", celery_id="x.1.1")
        yield page_of(task)


def _tasks_of_a_run(numbers: tuple[int, ...]) -> Iterator[str]:
    for number in numbers:
        wf = Workflow("wide")
        wf.add(noop, after=[wf.add(noop) for _ in range(number + 2)], step="end")
        yield f"{page_of(wf.start())}?p=9"


def _neighbours(numbers: tuple[int, ...]) -> Iterator[str]:
    for number in numbers:
        wf = Workflow("wide")
        first = wf.add(noop, step="first")
        middle = wf.add(noop, after=[first, *(wf.add(noop) for _ in range(number))], step="middle")
        for _ in range(number):
            wf.add(noop, after=middle)
        yield page_of(of(wf.start(), "middle"))


def _ledger_entries(numbers: tuple[int, ...]) -> Iterator[str]:
    row = a_schedule()
    for number in numbers:
        for _ in range(number):
            row.trigger_now()
        assert OccurrenceRecord.objects.exists()
        yield page_of(row)


@pytest.mark.parametrize("pages", [_attempts, _tasks_of_a_run, _neighbours, _ledger_entries])
def test_a_page_needs_as_many_statements_for_many_rows(ann: Client, pages: Any) -> None:
    few, many = (_statements(ann, address) for address in pages((1, 60)))
    assert len(many) <= len(few) <= 25


def test_a_graph_reads_no_large_columns_and_adds_no_statements_to_the_list_of_tasks(
    ann: Client,
) -> None:
    many_tasks(3, Status.FAILED)
    before = len(_statements(ann, list_of("task")))
    run = a_diamond()
    assert len(_statements(ann, list_of("task"))) == before
    assert "kwargs" not in "".join(_statements(ann, page_of(run)))


@pytest.mark.parametrize(
    ("action", "model", "status"),
    [
        ("cancel", Task, Status.PENDING),
        ("replay", Task, Status.FAILED),
        ("discard", DeadLetter, Status.FAILED),
    ],
)
def test_an_action_needs_as_many_statements_for_many_rows(
    ann: Client, action: str, model: Any, status: Status
) -> None:
    costs = []
    for number in (1, 1, 50):
        Task.objects.unguarded().all().delete()
        many_tasks(number, status)
        chosen = list(model.objects.all())
        with CaptureQueriesContext(connection) as captured:
            act(ann, action, *chosen, reason="because")
        costs.append(len(captured))
    assert costs[1] == costs[2]
