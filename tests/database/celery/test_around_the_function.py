"""What stands around the function: an overridden ``__call__``, wrappers of other packages, tasks of
the same name that are not durable. No message ends without an attempt or a return of its task.
"""

from __future__ import annotations

import pickle
import traceback
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import current_app, shared_task
from celery.exceptions import Ignore, Reject
from celery.exceptions import Retry as CeleryRetry

from django_durable_tasks import durable_task
from django_durable_tasks.celery.task import DurableTask
from django_durable_tasks.choices import Status
from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.models import DeadLetter, Task
from tests.celery_settings import celery_configured
from tests.delivery import run_task, trace
from tests.factories import a_task
from tests.project.observed import SLOWLY, Stubborn

pytestmark = pytest.mark.django_db(transaction=True)
calls: list[tuple[Any, ...]] = []


class _Logged:
    """A mixin, as projects have it."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        calls.append(("mixin", args, kwargs))
        return super().__call__(*args, **kwargs)  # type: ignore[misc]


class Tenanted(_Logged, DurableTask):
    """Reads an argument of the task around the function."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        schema = kwargs.pop("schema")
        return super().__call__(*args, schema=schema.upper(), **kwargs)


@durable_task(base=Tenanted, bind=True, max_attempts=2, **SLOWLY)
def tenanted(self: Any, number: int, schema: str = "") -> str:
    """Return what the override passed on. Calls itself directly once."""
    calls.append(("function", number, schema, self.request.id))
    return f"{schema} {self(number - 1, schema='inner')}" if number else schema


@durable_task(max_attempts=2, **SLOWLY)
def wrapped() -> str:
    """Is wrapped by another package in some tests."""
    return "from the function"


@durable_task(max_attempts=2, batch=5, **SLOWLY)
def wrapped_batch() -> str:
    """Is wrapped by another package in some tests."""
    return "from the function"


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Start without calls."""
    calls.clear()


def test_an_overridden_call_gets_the_arguments_and_runs_the_function_once() -> None:
    row = run_task(tenanted, 1, kwargs={"schema": "acme"})
    assert (row.status, row.result, row.attempts) == (Status.SUCCESS, "ACME INNER", 1)
    assert [call[0] for call in calls] == ["mixin", "function", "mixin", "function"]
    assert calls[1] == ("function", 1, "ACME", str(row.pk))


def test_an_overridden_call_is_not_called_for_a_refused_message() -> None:
    row = a_task(Status.QUEUED, name=tenanted.name, args=[0], kwargs={"schema": "acme"})
    for _ in range(3):
        trace(row)
    assert len(calls) == 2


def test_an_overridden_call_is_called_in_eager_mode_and_by_direct_calls() -> None:
    assert tenanted(0, schema="direct") == "DIRECT"
    with celery_configured(task_always_eager=True):
        assert tenanted.delay(0, schema="eager").get(timeout=1) == "EAGER"
        tenanted.delay(0)
    failed = Task.objects.exclude(status=Status.SUCCESS).get()
    assert (failed.status, failed.failures) == (Status.PENDING, 1)


def test_an_error_of_an_overridden_call_is_counted_and_becomes_a_dead_letter() -> None:
    row = run_task(tenanted, 1, max_attempts=1)
    assert (row.status, row.attempts, row.failures) == (Status.FAILED, 1, 1)
    assert DeadLetter.objects.get(task=row).error_message == "KeyError: 'schema'"
    assert 'kwargs.pop("schema")' in row.executions.get().traceback


def test_headers_of_a_message_cannot_pretend_that_the_gate_accepted_it() -> None:
    row = a_task(Status.QUEUED, name=wrapped.name)
    from tests import delivery

    forged = {"durable_call_state": {"received": True, "run": "x"}, "called_directly": True}
    delivery._trace(wrapped.name, f"{row.pk}.{row.epoch + 5}.1", {}, **forged)
    row.refresh_from_db()
    assert row.status == Status.QUEUED


@pytest.mark.parametrize("task", [wrapped, wrapped_batch], ids=["by message", "in a batch"])
@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (LookupError("wrapper"), Status.PENDING, ""),
        (CeleryRetry(exc=KeyError("later"), when=600), Status.PENDING, ""),
        (Ignore("no"), Status.CANCELLED, "IGNORED"),
        (Reject("no", requeue=False), Status.FAILED, "REJECTED"),
        (MemoryError(), Status.PENDING, ""),
        (None, Status.SUCCESS, ""),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_what_a_wrapper_around_the_gate_does_is_an_attempt(
    monkeypatch: pytest.MonkeyPatch, task: Any, error: Exception | None, status: str, reason: str
) -> None:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if error is not None:
            raise error
        return "from a wrapper"

    monkeypatch.setattr(type(current_app.tasks[task.name]), "__call__", call)
    row = run_task(task)
    assert (row.status, row.reason, row.attempts) == (status, reason, 1)
    assert row.executions.count() == 1
    assert row.result == (None if error else "from a wrapper")


def test_a_message_whose_task_is_not_durable_in_this_worker_is_returned() -> None:
    @shared_task(name="tests.around.plain")
    def plain() -> None:
        """Has the name of a durable task of another release."""

    row = a_task(Status.QUEUED, name="tests.around.plain")
    current_app.finalize()
    trace(row, name=plain.name)
    row.refresh_from_db()
    assert (row.status, row.attempts) == (Status.PENDING, 0)
    assert row.due_at is not None
    assert row.due_at > row.updated_at


class _Odd(Exception):
    """Cannot be pickled, and its arguments cannot be read."""

    @property
    def args(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no arguments")

    def __reduce__(self) -> Any:
        raise RuntimeError("no pickle")


def _raise(kind: str) -> None:
    match kind:
        case "picklable":
            raise KeyError("a")
        case "stubborn":
            raise Stubborn("one", "two")
        case "local":
            raise type("Local", (Exception,), {})("of a function")
        case "memory":
            raise MemoryError("full")
        case "odd":
            raise _Odd
        case "chained":
            try:
                raise LookupError("the cause")
            except LookupError as error:
                raise KeyError("chained") from error


raises = durable_task(name="tests.around.raises", max_attempts=1)(_raise)
raises_in_batch = durable_task(name="tests.around.raises.batch", batch=5, max_attempts=1)(_raise)


@pytest.mark.parametrize("task", [raises, raises_in_batch], ids=["by message", "in a batch"])
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("picklable", "KeyError"),
        ("stubborn", "Stubborn"),
        ("local", "Local"),
        ("memory", "BodyFailed from MemoryError"),
        ("odd", "BodyFailed from _Odd"),
        ("chained", "KeyError from LookupError"),
    ],
)
def test_wrappers_see_the_exception_and_frames_of_the_function_and_pools_can_send_it(
    monkeypatch: pytest.MonkeyPatch, task: Any, kind: str, name: str
) -> None:
    class_of_task: Any = type(current_app.tasks[task.name])
    original, seen = class_of_task.__call__, []

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, *args, **kwargs)
        except Exception as error:
            frames = "".join(traceback.format_exception(error))
            causes = [error, error.__cause__] if error.__cause__ else [error]
            names = [type(cause).__name__ for cause in causes]
            seen.append((" from ".join(names), "in _raise" in frames))
            raise

    monkeypatch.setattr(class_of_task, "__call__", watched)
    if task is raises:
        row = a_task(Status.QUEUED, name=task.name, args=[kind], max_attempts=1)
        sent = pickle.loads(pickle.dumps(trace(row)[0]))  # noqa: S301 - our own object
        assert not isinstance(sent.exception, MemoryError)
        row.refresh_from_db()
    else:
        row = run_task(task, kind, max_attempts=1)
    assert seen == [(name, True)]
    assert row.status == Status.FAILED


class Headed(DurableTask):
    """Adds a header to each call."""

    abstract = True

    def apply_async(
        self, args: Any = None, kwargs: Any = None, task_id: Any = None, **options: Any
    ) -> Any:
        return super().apply_async(args, kwargs, task_id, headers={"schema": "acme"}, **options)


@durable_task(base=Headed)
def headed() -> None:
    """Is called with a header."""


def test_delay_goes_through_an_overridden_apply_async(monkeypatch: pytest.MonkeyPatch) -> None:
    headed.delay()
    assert (Task.objects.get().options or {})["headers"] == {"schema": "acme"}
    monkeypatch.setattr(wrapped, "apply_async", lambda *args, **options: "patched", raising=False)
    assert wrapped.delay() == "patched"


class Merging(DurableTask):
    """Adds a header to those of the call, as the tasks of tenant-schemas-celery do."""

    abstract = True

    def apply_async(
        self, args: Any = None, kwargs: Any = None, task_id: Any = None, **options: Any
    ) -> Any:
        calls.append(("apply_async", args, kwargs, sorted(options)))
        options["headers"] = {**(options.get("headers") or {}), "schema": "acme"}
        return super().apply_async(args, kwargs, task_id, **options)


@durable_task(base=Merging)
def merging(number: int = 0) -> None:
    """Is called with a header of its class."""


def test_every_call_of_one_task_goes_through_an_overridden_apply_async() -> None:
    key: dict[str, Any] = {
        "max_attempts": 7,
        "headers": {"by": "admin"},
        "priority": 3,
        "weight": 2,
    }
    at = datetime.now(UTC) + timedelta(hours=1)
    merging.delay(0)
    assert isinstance(merging.schedule(number=1, run_at=at), Task)
    merging.using(**key, key="two").delay(2)
    assert merging.using(**key).schedule(3, run_at=at).run_at == at
    merging.using(**key).apply_async((4,), countdown=60)
    merging.s(5).set(priority=3).delay()
    merging.delay_on_commit(6)
    rows = {row.args[0] if row.args else 1: row for row in Task.objects.filter(name=merging.name)}
    assert sorted(rows) == list(range(7))
    assert len(calls) == 7
    assert {(row.options or {})["headers"]["schema"] for row in rows.values()} == {"acme"}
    for number in (2, 3, 4):
        row = rows[number]
        assert (row.max_attempts, row.priority, row.weight) == (7, 3, 2)
        assert row.options
        assert row.options["headers"] == {"by": "admin", "schema": "acme"}
    assert rows[2].key == "two"
    assert calls[2] == ("apply_async", (2,), {}, ["durable_options", "headers", "priority"])


def test_an_overridden_apply_async_may_create_the_task_later_or_with_more_options(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def keyed(self: Any, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        return self.using(key="own").apply_async(args, kwargs, **options)

    monkeypatch.setattr(Merging, "apply_async", keyed)
    assert merging.schedule(1).key == "own"

    monkeypatch.setattr(Merging, "apply_async", lambda *args, **options: None)
    assert merging.schedule(1) is None
    assert Task.objects.count() == 1


@pytest.mark.parametrize("form", ["schedule_many", "schedule_stream"])
def test_bulk_calls_do_not_bypass_an_overridden_apply_async(form: str) -> None:
    with pytest.raises(InvalidOption, match=r"does not call the apply_async\(\) that Merging"):
        getattr(merging.using(priority=1), form)([(1,)])
    assert not Task.objects.exists()
