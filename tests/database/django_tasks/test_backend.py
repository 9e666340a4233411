"""``DurableTasksBackend``: how options, priorities and results of ``django.tasks`` become those of
durable tasks.
"""

from __future__ import annotations

import inspect
import sys
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from django.test import override_settings
from django.utils import timezone

from django_durable_tasks import recurring, registry
from django_durable_tasks.backends import DurableDjangoTask, durable_priority
from django_durable_tasks.celery import late_tasks
from django_durable_tasks.exceptions import InvalidArguments, InvalidOption
from django_durable_tasks.models import Task, TaskExecutionLog
from django_durable_tasks.tasks_api import (
    DjangoDummyBackend,
    TaskResultDoesNotExist,
    task,
    task_backends,
    task_enqueued,
    task_finished,
)
from django_durable_tasks.testing import drain
from tests.celery_settings import celery_configured
from tests.process_state import new_process_state
from tests.project import late, tasks

pytestmark = pytest.mark.django_db(transaction=True)
OURS = "django_durable_tasks.backends.DurableTasksBackend"
takes_options = any(
    parameter.kind is parameter.VAR_KEYWORD
    for parameter in inspect.signature(task).parameters.values()
)
"""Whether ``@task`` takes the options of the backend's task class: not on Django 6.0."""


def add(a: int, b: int = 1) -> int:
    """Return the sum."""
    return a + b


def at(run_at: str) -> str:
    """Return a parameter that a durable task cannot have."""
    return run_at


def fail(text: str = "from the function") -> None:
    """Raise ValueError."""
    raise ValueError(text)


def attempts(context: Any, until: int) -> list[Any]:
    """Fail before this attempt; return the number of the attempt and of the errors so far."""
    if context.attempt < until:
        raise LookupError(f"attempt {context.attempt}")
    return [context.attempt, len(context.task_result.errors)]


def kind_of(value: uuid.UUID) -> str:
    """Return the class of the argument. django.tasks passes what JSON has."""
    return type(value).__name__


def with_schedule() -> None:
    """Return None."""


def with_schedule_below() -> None:
    """Return None."""


def made(function: Callable[..., Any], **options: Any) -> Any:
    """Return a Task object with options, on each version of Django."""
    of_django = {"priority": 0, "queue_name": "default", "backend": "default", "run_after": None}
    return DurableDjangoTask(func=function, **{**of_django, **options})


@pytest.fixture
def eager() -> Iterator[None]:
    """Run tasks at the commit, in this process."""
    with celery_configured(task_always_eager=True):
        yield


def row_of(result: Any) -> Task:
    """Return the row of a result."""
    found: Task = Task.objects.get(pk=result.id)
    return found


@pytest.mark.parametrize(
    ("priority", "ours"),
    [(-100, 0), (-81, 0), (-80, 1), (-1, 4), (0, 5), (19, 5), (20, 6), (79, 8), (80, 9), (100, 9)],
)
def test_a_priority_of_django_is_one_of_ten(priority: int, ours: int) -> None:
    assert durable_priority(priority) == ours
    assert row_of(made(add).using(priority=priority).enqueue(1)).priority == ours


def test_a_call_is_a_durable_task_in_the_transaction_of_the_caller() -> None:
    later = timezone.now() + timedelta(hours=1)
    with transaction.atomic():
        result = made(add).using(run_after=later).enqueue(1, b=2)
        row = row_of(result)
        transaction.set_rollback(True)
    assert (row.name, row.args, row.kwargs) == (f"{__name__}.add", [1], {"b": 2})
    assert (row.run_at, row.status, row.max_attempts) == (later, "PENDING", 5)
    assert not Task.objects.exists()


def test_the_default_queue_of_django_is_that_of_celery(settings: Any) -> None:
    assert row_of(made(add).enqueue(1)).queue == settings.CELERY_TASK_DEFAULT_QUEUE
    assert row_of(made(add).using(queue_name="reports").enqueue(1)).queue == "reports"


def test_options_of_a_durable_task_are_options_of_the_task_class() -> None:
    made(add, max_attempts=3, max_crashes=2, backoff="FIXED", backoff_base=7, timeout=20)
    options = registry.get(f"{__name__}.add").options
    assert (options.max_attempts, options.max_crashes, options.timeout) == (3, 2, 20)
    assert (options.retry.backoff, options.retry.base) == ("FIXED", 7)
    assert row_of(made(add, max_attempts=3).enqueue(1)).max_attempts == 3


@pytest.mark.skipif(not takes_options, reason="@task takes no further options on Django 6.0")
def test_options_of_a_durable_task_are_options_of_the_decorator() -> None:
    task(max_attempts=2, priority=7)(add)
    assert registry.get(f"{__name__}.add").options.max_attempts == 2
    with pytest.raises(
        InvalidOption, match=r"no option 'max_attemps'\. Did you mean 'max_attempts'"
    ):
        task(max_attemps=2)(add)


@pytest.mark.parametrize(
    ("option", "remedy"),
    [
        ("max_attemps", "Did you mean 'max_attempts'?"),
        ("takes_contxt", "Did you mean 'takes_context'?"),
        ("queue", "Write queue_name=..."),
        ("max_retries", "Write max_attempts=..., which counts the first attempt too"),
        ("countdown", "Write .using(run_after=...)."),
    ],
)
def test_an_unknown_option_is_an_error_with_the_nearest_one(option: str, remedy: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        made(add, **{option: 1})
    assert str(refused.value).startswith(f"@task has no option {option!r}. {remedy}")
    assert refused.value.option == option


def test_an_invalid_value_is_an_error() -> None:
    with pytest.raises(InvalidOption, match="max_attempts=0: give a whole number from 1 to 1000"):
        made(add, max_attempts=0)


def test_options_of_the_backend_are_the_defaults_of_its_tasks() -> None:
    backend = {"BACKEND": OURS, "OPTIONS": {"max_attempts": 2, "timeout": 9}, "MAX_ATTEMPTS": 4}
    with override_settings(TASKS={"default": backend}):
        made(add, timeout=5)
        options = registry.get(f"{__name__}.add").options
        assert (options.max_attempts, options.timeout) == (4, 5)
    unknown = {"BACKEND": OURS, "OPTIONS": {"max_retry": 2}}
    with (
        override_settings(TASKS={"default": unknown}),
        pytest.raises(InvalidOption, match=r"TASKS\['default'\]\['OPTIONS'\] has no option"),
    ):
        made(add)


def test_arguments_must_fit_the_function() -> None:
    with pytest.raises(InvalidArguments, match="unexpected keyword argument 'c'"):
        made(add).enqueue(1, c=1)
    with pytest.raises(InvalidArguments, match="context"):
        made(attempts, takes_context=True).enqueue(1, context=2)
    assert not Task.objects.exists()


def test_a_function_may_have_a_parameter_run_at(eager: None) -> None:
    result = made(at).enqueue(run_at="now")
    result.refresh()
    assert result.return_value == "now"


def test_annotations_convert_no_argument_as_in_djangos_backends() -> None:
    result = made(kind_of).enqueue(str(uuid.uuid4()))
    drain()
    result.refresh()
    assert result.return_value == "str"
    with pytest.raises(TypeError):
        made(kind_of).enqueue(uuid.uuid4())


def test_the_context_of_a_further_attempt_has_the_errors_so_far() -> None:
    result = made(attempts, takes_context=True, max_attempts=5).enqueue(3)
    drain()
    result.refresh()
    assert (result.status, result.return_value) == ("SUCCESSFUL", [3, 2])
    assert (result.attempts, len(result.worker_ids)) == (3, 3)
    assert [error.exception_class for error in result.errors] == [LookupError, LookupError]
    assert "attempt 2" in result.errors[1].traceback
    assert result.started_at < result.last_attempted_at <= result.finished_at


def test_a_unique_task_is_enqueued_once() -> None:
    signals: list[str] = []

    def receive(task_result: Any, **_: Any) -> None:
        signals.append(task_result.id)

    task_enqueued.connect(receive)
    try:
        unique = made(add, unique="{task}:{0}")
        first, second, other = unique.enqueue(1), unique.enqueue(1), unique.enqueue(2)
    finally:
        task_enqueued.disconnect(receive)
    assert second.id == first.id != other.id
    assert signals == [first.id, other.id]
    made(add)


def test_a_task_that_waits_for_a_retry_is_ready_and_has_the_error(eager: None) -> None:
    finished: list[Any] = []

    def receive(task_result: Any, **_: Any) -> None:
        finished.append(task_result)

    task_finished.connect(receive)
    try:
        result = made(fail, max_attempts=3).enqueue()
    finally:
        task_finished.disconnect(receive)
    result.refresh()
    assert (result.status, result.attempts, finished) == ("READY", 1, [])
    assert result.errors[0].exception_class is ValueError
    assert "from the function" in result.errors[0].traceback


def test_backoff_takes_the_exception_and_the_result(eager: None) -> None:
    seen: list[Any] = []

    def backoff(exception: BaseException, task_result: Any) -> int | None:
        seen.append((exception, task_result))
        return 30 if str(exception) == "again" else None

    retried = made(fail, max_attempts=5, backoff=backoff)
    result = retried.enqueue("again")
    row = row_of(result)
    assert row.status == "PENDING"
    assert row.due_at is not None
    assert 25 < (row.due_at - timezone.now()).total_seconds() < 31
    exception, task_result = seen[0]
    assert isinstance(exception, ValueError)
    assert (task_result.id, task_result.status, task_result.attempts) == (result.id, "FAILED", 1)
    assert task_result.errors[0].exception_class is ValueError
    assert TaskExecutionLog.objects.get().error_message == "ValueError: again"

    given_up = retried.enqueue("never again")
    given_up.refresh()
    assert (given_up.status, given_up.attempts) == ("FAILED", 1)
    row = row_of(given_up)
    assert (row.reason, row.max_attempts) == ("GAVE_UP", 5)


def test_backoff_may_also_be_one_of_a_durable_task() -> None:
    made(fail, backoff=lambda failures: 10.0 * failures)
    policy = registry.get(f"{__name__}.fail").options.retry
    assert policy.delay(2, 0.5) == 20


def test_a_cancelled_task_is_failed() -> None:
    result = made(add).using(run_after=timezone.now() + timedelta(hours=1)).enqueue(1)
    Task.objects.filter(pk=result.id).cancel(reason="not needed")
    result.refresh()
    assert (result.status, result.is_finished, result.attempts) == ("FAILED", True, 0)
    assert "not needed" in result.errors[0].traceback
    assert result.errors[0].exception_class.__name__ == "TaskRevokedError"


def test_a_durable_task_that_is_no_task_of_django_has_no_result() -> None:
    with pytest.raises(TaskResultDoesNotExist):
        task_backends["default"].get_result(str(tasks.add.schedule(1, 2).pk))
    with pytest.raises(TaskResultDoesNotExist):
        task_backends["default"].get_result(str(uuid.uuid4()))


def test_another_backend_of_the_same_class_is_part_of_the_result() -> None:
    both = {"default": {"BACKEND": OURS}, "second": {"BACKEND": OURS}}
    with override_settings(TASKS=both):
        result = made(add).using(backend="second").enqueue(1)
        found = task_backends["default"].get_result(result.id)
        assert (found.backend, found.task.backend) == ("second", "second")


def test_recurring_is_written_above_or_below(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_declarations", {})
    above = recurring("django-above", interval=3600)(made(with_schedule))
    made(recurring("django-below", cron="0 3 * * *")(with_schedule_below))
    declared = registry.declarations()
    assert declared["django-above"].task == above.module_path == f"{__name__}.with_schedule"
    assert declared["django-below"].task == f"{__name__}.with_schedule_below"


@pytest.mark.parametrize("backend", ["DummyBackend", "ImmediateBackend"])
def test_the_backends_for_tests_take_the_same_options(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"django_durable_tasks.backends.{backend}"
    entry = {"BACKEND": path, "OPTIONS": {"max_attempts": 2}}
    with override_settings(TASKS={"default": entry}):
        function = add
        tolerant = made(function, max_attempts=3, unique="{task}:{0}", timeout=5)
        monkeypatch.setattr(sys.modules[__name__], "add", tolerant)  # results are copied by path
        result = tolerant.using(run_after=timezone.now(), priority=5).enqueue(1)
        assert result.status == ("READY" if backend == "DummyBackend" else "SUCCESSFUL")
        with pytest.raises(InvalidOption, match="Did you mean 'timeout'"):
            made(function, timeouts=5)
    assert not Task.objects.exists()


def test_only_task_objects_of_this_backend_are_imported(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert late_tasks.load("tests.project.late.add")
    caplog.clear()
    absent = ("late.plain", "late.removed", "missing.add", "missing.tasks.add")
    for name in (*(f"tests.project.{name}" for name in absent), "os.getpid", "nothing", ".add"):
        assert not late_tasks.load(name)
        assert registry.find(name) is None
    assert caplog.text == ""
    # A module that fails is another fault than a name that no module has.
    (tmp_path / "failing_module.py").write_text("import no_such_library\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert not late_tasks.load("failing_module.add")
    assert "No module named 'no_such_library'" in caplog.text
    new_process_state()
    dummy = f"{DjangoDummyBackend.__module__}.{DjangoDummyBackend.__qualname__}"
    assert late.plain.__module__ == "tests.project.late"
    with override_settings(TASKS={"default": {"BACKEND": dummy}}):
        assert late_tasks.backends() == []
