"""Pages of workflows and tasks need the same number of statements for few and for many objects."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_durable_tasks import Workflow
from django_durable_tasks.choices import Status
from tests.database.admin.site import list_of, page_of
from tests.database.admin.workflow_runs import a_diamond
from tests.database.dependencies.worker_and_leader import of
from tests.factories import a_tenant, many_tasks
from tests.project.tasks import noop

pytestmark = pytest.mark.django_db


def _cost(ann: Client, address: str) -> int:
    ann.get(address)
    with CaptureQueriesContext(connection) as captured:
        assert ann.get(address).status_code == 200
    return len(captured)


@pytest.mark.parametrize("model", ["workflowrun", "taskdependency"])
def test_the_list_needs_as_many_statements_for_one_run_as_for_twenty(
    ann: Client, model: str
) -> None:
    a_diamond()
    one = _cost(ann, list_of(model))
    for number in range(19):
        a_diamond(f"diamond{number}", tenant=a_tenant())
    assert _cost(ann, list_of(model)) == one
    assert one <= 16


def test_the_page_of_a_run_needs_as_many_statements_for_a_small_graph_as_for_a_large_one(
    ann: Client,
) -> None:
    costs = []
    for number in (3, 90):
        wf = Workflow("wide")
        wf.add(noop, after=[wf.add(noop) for _ in range(number)], step="end")
        run = wf.start()
        costs.append(_cost(ann, f"{page_of(run)}?p=9"))
    assert costs[0] == costs[1]


def test_the_page_of_a_task_needs_as_many_statements_for_one_neighbour_as_for_fifty(
    ann: Client,
) -> None:
    costs = []
    for number in (1, 60):
        wf = Workflow("wide")
        first = wf.add(noop, step="first")
        middle = wf.add(noop, after=[first, *(wf.add(noop) for _ in range(number))], step="middle")
        for _ in range(number):
            wf.add(noop, after=middle)
        run = wf.start()
        costs.append(_cost(ann, page_of(of(run, "middle"))))
    assert costs[1] <= costs[0] <= 25


def test_large_columns_of_tasks_are_not_read_for_a_graph(ann: Client) -> None:
    run = a_diamond()
    with CaptureQueriesContext(connection) as captured:
        ann.get(page_of(run))
    assert not [query["sql"] for query in captured if "kwargs" in query["sql"]]


def test_a_list_of_unrelated_tasks_needs_no_additional_statements_because_of_graphs(
    ann: Client,
) -> None:
    many_tasks(3, Status.FAILED)
    before = _cost(ann, list_of("task"))
    a_diamond()
    assert _cost(ann, list_of("task")) == before
