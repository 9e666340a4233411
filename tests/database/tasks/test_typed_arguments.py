"""Arguments of annotated types are stored as JSON and reach the function as values of these types,
however the task runs.
"""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from celery import current_app
from django.core.exceptions import ValidationError

from django_durable_tasks import PerKey, Schedule, Workflow, durable_task, registry
from django_durable_tasks.audit import masked_arguments
from django_durable_tasks.celery.task import DurableTask
from django_durable_tasks.choices import Status
from django_durable_tasks.dependencies import resolve
from django_durable_tasks.exceptions import (
    InvalidArguments,
    PayloadTooLarge,
    UnserializableArguments,
)
from django_durable_tasks.models import RecurringTask, Task
from django_durable_tasks.tasks import enqueue
from tests.celery_settings import celery_configured
from tests.delivery import run_task, trace, trace_batches
from tests.factories import QUEUE, a_task

pytestmark = pytest.mark.django_db(transaction=True)
seen: list[Any] = []


class Kind(enum.Enum):
    """An argument."""

    FULL = "full"


@dataclass
class Login:
    """An argument with a secret."""

    user: str
    password: str
    since: date


class Hooked(DurableTask):
    """Shows the arguments that hooks get."""

    abstract = True

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        seen.append(("before_start", list(args), dict(kwargs)))


ID = UUID("6f3c9a52-6a5e-5c0e-9d0b-1d7a1a0c7f11")
AT = datetime(2026, 3, 1, 12, tzinfo=UTC)


@durable_task(queue=QUEUE, base=Hooked)
def typed(
    pk: UUID, amount: Decimal, *days: date, kind: Kind, path: Path | None = None, **more: timedelta
) -> str:
    """Take many types."""
    seen.append((pk, amount, days, kind, path, more))
    return day_after(days[0])


@durable_task(queue=QUEUE, batch=10)
def batched(pk: UUID, tags: set[str]) -> None:
    """Run in a batch."""
    seen.append((pk, tags))


@durable_task(queue=QUEUE, unique="report:{0}:{kind}", max_concurrency=PerKey(1, key="day:{0}"))
def keyed(day: date, kind: Kind = Kind.FULL) -> None:
    """Have keys of the arguments."""


@durable_task(queue=QUEUE)
def upload(files: dict[str, bytes], data: bytes | None) -> None:
    """Take bytes."""
    seen.append((files, data))


# Its limit must not apply to other tests.
_KEYED = registry._tasks.pop(keyed.name)


def _key(day: date, pk: UUID) -> str:
    return f"{day.year}-{pk.hex}"


@durable_task(queue=QUEUE, unique=_key)
def keyed_by_function(day: date, pk: UUID) -> None:
    """Have a key that a function makes of the values."""


@durable_task(queue=QUEUE)
def login(data: Login, api_token: UUID | None = None) -> None:
    """Take secrets."""
    seen.append((data, api_token))


@durable_task(queue=QUEUE)
def tomorrow(day: date) -> str:
    """Return a date as JSON."""
    seen.append(day)
    return day_after(day)


@durable_task(queue=QUEUE)
def following(day: date) -> Schedule:
    """Create a task with a date."""
    return Schedule(tomorrow, (day + timedelta(days=7),))


def day_after(day: date) -> str:
    """Return the next day as JSON."""
    return (day + timedelta(days=1)).isoformat()


ARGS = (ID, Decimal("1.50"), date(2026, 3, 1))
KWARGS = {"kind": Kind.FULL, "path": Path("a/b"), "grace": timedelta(hours=1)}
STORED = [str(ID), "1.50", "2026-03-01"]
STORED_KWARGS = {"kind": "full", "path": "a/b", "grace": 3600}
EXPECTED = (
    ID,
    Decimal("1.50"),
    (date(2026, 3, 1),),
    Kind.FULL,
    Path("a/b"),
    {"grace": timedelta(hours=1)},
)


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Start without calls."""
    seen.clear()


def test_a_worker_calls_the_function_and_hooks_with_the_values() -> None:
    row = typed.schedule(*ARGS, **KWARGS)  # type: ignore[call-overload]
    row.refresh_from_db()
    assert (row.args, row.kwargs) == (STORED, STORED_KWARGS)
    done = run_task(typed, *row.args, kwargs=row.kwargs)
    assert (done.status, done.result) == (Status.SUCCESS, "2026-03-02")
    assert seen == [("before_start", list(ARGS), KWARGS), EXPECTED]


def test_every_calling_form_stores_the_json_form() -> None:
    typed.delay(*ARGS, **KWARGS)  # type: ignore[arg-type]
    typed.apply_async(ARGS, KWARGS)
    typed.using(priority=1).schedule(*ARGS, **KWARGS)  # type: ignore[call-overload]
    typed.s(*ARGS, **KWARGS).delay()
    current_app.send_task(typed.name, ARGS, KWARGS)
    typed.delay(*STORED, **STORED_KWARGS)  # type: ignore[arg-type]
    found = {json.dumps([row.args, row.kwargs]) for row in Task.objects.all()}
    assert found == {json.dumps([STORED, STORED_KWARGS])}
    ids = batched.schedule_many([(ID, {"b", "a"})])
    assert Task.objects.get(pk=ids[0]).args == [str(ID), ["a", "b"]]


def test_a_batch_calls_the_function_with_the_values() -> None:
    batched.schedule(ID, {"b", "a"})
    trace_batches(batched.name, QUEUE)
    assert seen == [(ID, {"a", "b"})]


def test_eager_mode_direct_calls_and_apply_use_the_values() -> None:
    with celery_configured(task_always_eager=True):
        assert typed.delay(*ARGS, **KWARGS).get(timeout=1) == "2026-03-02"  # type: ignore[arg-type]
    typed(*ARGS, **KWARGS)  # type: ignore[arg-type]
    typed.apply(ARGS, KWARGS)  # type: ignore[attr-defined]
    assert [call for call in seen if call[0] != "before_start"] == [EXPECTED] * 3


def test_bytes_travel_as_base64() -> None:
    row = upload.schedule({"a": b"\x00\xff"}, b"")
    assert (row.args, row.kwargs) == ([{"a": "AP8="}, ""], {})
    assert run_task(upload, *row.args).status == Status.SUCCESS
    assert seen == [({"a": b"\x00\xff"}, b"")]
    with pytest.raises(PayloadTooLarge, match="of them argument 'data'"):
        upload.schedule({}, b"x" * 49_152)


def test_edited_arguments_are_checked_and_used_in_their_json_form() -> None:
    row = a_task(Status.FAILED, name=tomorrow.name, args=["2026-03-01"])
    with pytest.raises(InvalidArguments, match="argument 'day' is a str, and not a date"):
        Task.objects.filter(pk=row.pk).replay(args=["soon"])
    Task.objects.filter(pk=row.pk).replay(args=["2026-04-01"])
    row.refresh_from_db()
    assert row.args == ["2026-04-01"]
    again = a_task(Status.FAILED, name=tomorrow.name, args=["2026-03-01"])
    Task.objects.filter(pk=again.pk).replay(args=[date(2026, 5, 1)])
    again.refresh_from_db()
    assert again.args == ["2026-05-01"]


def test_stored_arguments_that_do_not_fit_fail_the_attempt() -> None:
    row = a_task(Status.QUEUED, name=tomorrow.name, args=["soon"], max_attempts=1)
    trace(row)
    row.refresh_from_db()
    assert row.status == Status.FAILED
    assert row.last_error == (
        f"InvalidArguments: {tomorrow.name}: argument 'day' is a str, and not a date or its text in"
        " ISO 8601."
    )
    assert seen == []


def test_keys_are_the_same_for_values_and_their_json_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_tasks", {**registry._tasks, keyed.name: _KEYED})
    with_kind = keyed.schedule(date(2026, 3, 1), kind=Kind.FULL)
    assert keyed.schedule(date(2026, 3, 1), kind="full").pk == with_kind.pk  # type: ignore[call-overload]
    assert with_kind.unique_key == "report:2026-03-01:full"
    assert with_kind.limit_key == "day:2026-03-01"
    one = keyed_by_function.schedule(date(2026, 3, 1), ID)
    assert keyed_by_function.schedule("2026-03-01", str(ID)).pk == one.pk  # type: ignore[call-overload]
    known = registry.get(keyed_by_function.name)
    assert enqueue.keys_of(known, ["2026-03-01", str(ID)], {})[0] == f"2026-{ID.hex}"


def test_secrets_are_masked_by_the_names_of_parameters_and_fields() -> None:
    row = login.schedule(Login("ann", "hunter2", date(2026, 3, 1)), ID)
    assert row.args == [{"user": "ann", "password": "hunter2", "since": "2026-03-01"}, str(ID)]
    masked = json.dumps(masked_arguments(row.name, row.args, row.kwargs))
    assert "hunter2" not in masked
    assert str(ID) not in masked
    with pytest.raises(UnserializableArguments) as refused:
        login.schedule(Login("ann", "hunter2", date(2026, 3, 1)), "hunter2")  # type: ignore[call-overload]
    assert "hunter2" not in str(refused.value)
    run_task(login, *row.args)
    assert seen == [(Login("ann", "hunter2", date(2026, 3, 1)), ID)]


def test_a_step_of_a_workflow_gets_results_as_values() -> None:
    workflow = Workflow("days")
    first = workflow.add(tomorrow.using(queue=QUEUE), date(2026, 3, 1))
    workflow.add(tomorrow.using(queue=QUEUE), first.result, after=first)
    workflow.start()
    for _ in range(2):
        for row in Task.objects.filter(status=Status.PENDING):
            Task.objects.unguarded().filter(pk=row.pk).update(status=Status.QUEUED)
        for row in Task.objects.filter(status=Status.QUEUED):
            trace(row)
        resolve.resolve_endings(100)
    assert seen == [date(2026, 3, 1), date(2026, 3, 2)]


def test_a_returned_schedule_and_a_recurring_task_store_the_json_form() -> None:
    run_task(following, "2026-03-01")
    assert Task.objects.get(name=tomorrow.name).args == ["2026-03-08"]
    schedule = RecurringTask.objects.upsert(
        name="days", task=tomorrow, interval=3600, args=[date(2026, 3, 1)]
    )
    schedule.refresh_from_db()
    assert schedule.args == ["2026-03-01"]
    with pytest.raises((UnserializableArguments, ValidationError), match="and not a date"):
        RecurringTask.objects.upsert(name="days", task=tomorrow, args=["soon"])
