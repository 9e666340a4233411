"""A failure in one task or workflow does not affect others: in counting, cascades, deadlines and
starts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from celery import current_app
from django.db import connection

from django_durable_tasks import Workflow, durable_task
from django_durable_tasks.celery import prepared_messages
from django_durable_tasks.dependencies import resolve
from django_durable_tasks.exceptions import InvalidOption, UnknownQueue
from django_durable_tasks.models import Task, WorkflowRun
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.store.connections import TimeLimits, dedicated_connection
from django_durable_tasks.workflows import runs
from tests.concurrency.racing import locked_rows
from tests.database.dependencies.worker_and_leader import (
    fail,
    of,
    resolve_all,
    statuses,
    statuses_of,
    succeed,
)
from tests.factories import a_dead_letter, a_task, unavailable_database
from tests.process_state import new_process_state
from tests.project.tasks import noop
from tests.waiting import until

pytestmark = pytest.mark.django_db
READY = ("PENDING", "QUEUED")
IMPATIENT = TimeLimits(lock=0.2 if connection.vendor == "postgresql" else 1.0)


def _query(run: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT nope FROM no_such_table")
    return run


def raise_error(run: str) -> str:
    return {"yes": run}["nope"]


@durable_task(name="tests.isolation.raises", unique=raise_error)
def raises(run: str) -> None:
    """Have a ``unique=`` callable that raises."""


@durable_task(name="tests.isolation.queries", unique=_query)
def queries(run: str) -> None:
    """Have a ``unique=`` callable whose query fails."""


def _exit(run: str) -> str:
    sys.exit("the callable ends the process")


def _query_elsewhere(run: str) -> str:
    with unavailable_database().cursor() as cursor:
        cursor.execute("SELECT 1")
    return run


@durable_task(name="tests.isolation.exits", unique=_exit)
def exits(run: str) -> None:
    """Have a ``unique=`` callable that calls sys.exit()."""


@durable_task(name="tests.isolation.queries_elsewhere", unique=_query_elsewhere)
def queries_elsewhere(run: str) -> None:
    """Have a ``unique=`` callable that uses another, unavailable database."""


def _started(name: str, **options: Any) -> WorkflowRun:
    wf = Workflow(name, **options)
    top = wf.add(noop, step="top")
    wf.add(noop, after=top, step="low")
    return wf.start()


def _to_its_end(*started: WorkflowRun) -> None:
    for step in ("top", "low"):
        succeed(*(of(run, step) for run in started))
        resolve_all()


@pytest.mark.parametrize("callback", [raises, queries, exits, queries_elsewhere])
def test_a_callback_whose_code_raises_does_not_stop_workflows_from_ending(callback: Any) -> None:
    poison, innocent = _started("poison", on_complete=callback), _started("innocent")
    _to_its_end(poison, innocent)
    poison.refresh_from_db()
    innocent.refresh_from_db()
    assert (poison.status, innocent.status) == ("SUCCESS", "SUCCESS")
    assert "on_complete was not called" in poison.reason
    assert ("KeyError" in poison.reason) == (callback is raises)


def test_a_unique_callable_that_raises_is_an_invalid_option_of_its_own_call() -> None:
    with pytest.raises(InvalidOption, match=r"tests\.isolation\.raises raised KeyError: 'nope'"):
        raises.delay("1")
    assert not Task.objects.exists()


@pytest.fixture
def broken_router() -> Iterator[None]:
    def no_route(name: str, *_: Any, **__: Any) -> Any:
        if name == raises.name:
            raise RuntimeError("the router is broken")
        return None

    before = current_app.conf.task_routes
    _route_by([no_route])
    yield
    _route_by(before)


def _route_by(routes: Any) -> None:
    current_app.conf.task_routes = routes
    current_app.amqp.flush_routes()
    current_app.amqp.__dict__.pop("router", None)
    prepared_messages.forget()


@pytest.mark.usefixtures("broken_router")
def test_a_router_that_raises_affects_its_own_task_only() -> None:
    with pytest.raises(UnknownQueue, match="the router is broken"):
        raises.delay("1")
    assert Task.objects.get(pk=noop.delay().id).name == noop.name


def test_a_corrupted_workflow_is_postponed_and_the_others_are_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    spoilt, innocent = _started("spoilt"), _started("innocent")
    WorkflowRun.objects.unguarded().filter(pk=spoilt.pk).update(status="ODD")
    _to_its_end(spoilt, innocent)
    innocent.refresh_from_db()
    assert (innocent.status, innocent.succeeded) == ("SUCCESS", 2)
    assert f"workflow {spoilt.pk} failed and is postponed" in caplog.text
    WorkflowRun.objects.unguarded().filter(pk=spoilt.pk).update(status="RUNNING")
    new_process_state()
    resolve_all()
    spoilt.refresh_from_db()
    assert (spoilt.status, spoilt.succeeded) == ("SUCCESS", 2)


def test_an_ending_with_corrupted_dependents_does_not_stop_other_cascades(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, second = a_task(), a_task()
    spoilt, low = (
        noop.using(depends_on=[one], on_upstream_failure="FAIL").schedule()
        for one in (first, second)
    )
    a_dead_letter(spoilt)  # it has not failed yet: the database would refuse a second one
    fail(first)
    succeed(second)
    resolve_all()
    assert statuses(low)[0] in READY
    assert statuses(spoilt) == ["BLOCKED"]
    assert f"ending of task {first.pk} failed and is postponed" in caplog.text


def _count(run: WorkflowRun, other: WorkflowRun) -> tuple[Any, Any]:
    succeed(of(run, "top"), of(other, "top"))
    while resolve.resolve_endings(100).events:
        pass
    return (WorkflowRun, run.pk), lambda: runs.count_endings(100)


def _release(run: WorkflowRun, other: WorkflowRun) -> tuple[Any, Any]:
    succeed(of(run, "top"), of(other, "top"))
    return (Task, of(run, "low").pk), lambda: resolve.resolve_endings(100)


def _request_cancel(run: WorkflowRun, other: WorkflowRun) -> tuple[Any, Any]:
    WorkflowRun.objects.unguarded().update(deadline_at=database_now() - timedelta(seconds=1))
    now = database_now()
    return (WorkflowRun, run.pk), lambda: runs.cancel_late(now, 100)


def _cancel(run: WorkflowRun, other: WorkflowRun) -> tuple[Any, Any]:
    _, request_cancel_runs = _request_cancel(run, other)
    request_cancel_runs()
    return (Task, of(run, "low").pk), lambda: runs.cancel_called_off(100)


def _has_changed(run: WorkflowRun) -> list[Any]:
    run.refresh_from_db()
    return [run.succeeded, run.cancel_requested_at is not None, *statuses_of(run, "top", "low")]


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("case", [_count, _release, _request_cancel, _cancel])
def test_a_row_locked_by_the_project_stops_its_own_workflow_only(
    case: Callable[[WorkflowRun, WorkflowRun], tuple[Any, Any]],
) -> None:
    first, second = _started("first"), _started("second")
    (model, pk), act = case(first, second)
    before = _has_changed(first), _has_changed(second)
    with locked_rows(model, [pk]), dedicated_connection(IMPATIENT):
        act()
        assert _has_changed(second) != before[1]
        assert _has_changed(first) == before[0]
    new_process_state()
    until(lambda: act() or _has_changed(first) != before[0], within=30)
