"""``BackendConformance``: tests that every backend of ``django.tasks`` should pass.

A test case of a backend derives from it and from one of Django's test cases::

    class TestMyBackend(BackendConformance, TransactionTestCase):
        backend = {"BACKEND": "my_package.MyBackend"}

        def run_tasks(self):
            call_command("my_worker", "--until-empty")

It needs no other part of this package.
"""

from __future__ import annotations

import copy
import inspect
import pickle
import sys
import unittest
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from typing import Any, ClassVar

from django.db import transaction
from django.test import override_settings
from django.utils import timezone

from django_durable_tasks.tasks_api import (
    InvalidTask,
    InvalidTaskBackend,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultMismatch,
    TaskResultStatus,
    task,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)

# The tasks of the suite. `calls` is what ran in this process, in order.

calls: list[Any] = []


class SuiteError(Exception):
    """An exception of a class outside of builtins, with an argument that is no JSON."""


@task
def noop(*args: Any, **kwargs: Any) -> None:
    """Return None for any arguments."""


@task
async def noop_async(*args: Any, **kwargs: Any) -> None:
    """Return None for any arguments."""


@task
def add(a: int, b: int = 1) -> int:
    """Return the sum."""
    return a + b


@task
async def add_async(a: int, b: int = 1) -> int:
    """Return the sum."""
    return a + b


@task
def record(value: Any) -> None:
    """Append the value to ``calls``."""
    calls.append(value)


@task
def echo(value: Any) -> Any:
    """Return the value."""
    return value


@task
def raise_value_error() -> None:
    """Raise ValueError."""
    raise ValueError("This Task failed due to ValueError")


@task
async def raise_value_error_async() -> None:
    """Raise ValueError."""
    raise ValueError("This Task failed due to ValueError")


@task
def raise_complex_error() -> None:
    """Raise an exception whose argument can be neither pickled nor converted to JSON."""
    raise SuiteError(lambda: "neither pickled nor JSON")


@task
def raise_system_exit() -> None:
    """Raise SystemExit."""
    sys.exit("This Task failed due to SystemExit")


@task
def raise_keyboard_interrupt() -> None:
    """Raise KeyboardInterrupt."""
    raise KeyboardInterrupt("This Task failed due to KeyboardInterrupt")


@task
def return_tuple() -> Any:
    """Return what JSON has in another form."""
    return {"pair": (1, 2)}


@task
def return_function() -> Any:
    """Return what JSON cannot have."""
    return lambda: None


@task(takes_context=True)
def attempt_and_id(context: Any, suffix: str = "") -> list[Any]:
    """Return the number of the attempt, and the id of the result with a suffix."""
    return [context.attempt, f"{context.task_result.id}{suffix}"]


@task(takes_context=True)
async def attempt_async(context: Any) -> int:
    """Return the number of the attempt."""
    return int(context.attempt)


def _plain(context: Any = None) -> None:
    """Return None; a function of tasks that the suite creates."""


_Base = unittest.TestCase


class BackendConformance(_Base):
    """The tests of a backend. Derive from it and from a test case of Django, and set ``backend``.

    Features that a backend does not have are skipped: those of the four ``supports_*`` flags of its
    class, and those of the attributes below.
    """

    backend: ClassVar[dict[str, Any]] = {}
    """The entry of ``TASKS["default"]``. The suite adds QUEUES."""
    runs_tasks: ClassVar[bool] = True
    """Whether tasks run: in ``enqueue()`` or in ``run_tasks()``."""
    is_transactional: ClassVar[bool] = False
    """Whether a task that was created in a transaction is gone if the transaction is rolled back.
    """
    records_system_exit: ClassVar[bool] = True
    """Whether a task that raises SystemExit is FAILED with this error. Otherwise SystemExit ends
    the process of the worker, and the test is skipped.
    """
    raises_keyboard_interrupt: ClassVar[bool] = True
    """Whether KeyboardInterrupt of a task is raised by ``enqueue()`` or ``run_tasks()``. Otherwise
    it ends the process of the worker, and the test is skipped.
    """
    runs_in_this_process: ClassVar[bool] = True
    """Whether tasks run in the process of the tests, so that their signals can be received."""

    def run_tasks(self) -> None:
        """Run the tasks that are due, to their end. The default is for backends that run them in
        ``enqueue()``.
        """

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Enqueue tasks in this block that run in the next ``run_tasks()`` and not before."""
        yield

    @classmethod
    def setUpClass(cls) -> None:
        """Skip the suite itself, which a module imports to derive from it."""
        if cls is BackendConformance or not cls.backend:
            raise unittest.SkipTest("BackendConformance has no backend: set the attribute.")
        super().setUpClass()

    def setUp(self) -> None:
        """Set ``TASKS``, and remove the recorded calls."""
        super().setUp()
        queues = {"QUEUES": ["default", "queue-1"], **self.backend}
        settings = override_settings(TASKS={"default": queues})
        settings.enable()
        self.addCleanup(settings.disable)
        calls.clear()
        self.instance = task_backends["default"]

    # Helpers.

    def need(self, *flags: str) -> None:
        """Skip the test if the backend does not have these features."""
        for flag in flags:
            if not getattr(self.instance, flag, getattr(self, flag, False)):
                self.skipTest(f"{type(self.instance).__name__} has no {flag}.")

    def finished(self, task: Any, *args: Any, **kwargs: Any) -> Any:
        """Enqueue the task and run it; return its result, or skip the test if nothing runs."""
        self.need("runs_tasks")
        result = task.enqueue(*args, **kwargs)
        if not result.is_finished:
            self.run_tasks()
            self.need("supports_get_result")
            result.refresh()
        return result

    def failed(self, task: Any) -> Any:
        """Enqueue a task that fails and run it; return its only error."""
        result = self.finished(task)
        self.assertEqual(result.status, TaskResultStatus.FAILED)
        self.assertTrue(result.is_finished)
        self.assertEqual(len(result.errors), 1)
        self.assertLessEqual(result.started_at, result.finished_at)
        with self.assertRaisesMessage(ValueError, "Task failed"):  # type: ignore[attr-defined]
            _ = result.return_value
        return result.errors[0]

    @contextmanager
    def signals(self) -> Iterator[list[tuple[str, Any, Any, Any]]]:
        """Return a list of name, sender, status and exception of each signal in the block."""
        seen: list[tuple[str, Any, Any, Any]] = []

        def receiver(name: str) -> Any:
            def receive(sender: Any, task_result: Any, **_: Any) -> None:
                seen.append((name, sender, task_result.status, sys.exc_info()[0]))

            return receive

        with ExitStack() as stack:
            for name, signal in (
                ("task_enqueued", task_enqueued),
                ("task_started", task_started),
                ("task_finished", task_finished),
            ):
                connected = receiver(name)
                signal.connect(connected, weak=False)
                stack.callback(signal.disconnect, connected)
            yield seen

    # Enqueue.

    def test_the_backend_of_the_settings_is_used(self) -> None:
        self.assertIs(noop.get_backend(), self.instance)
        path = f"{type(self.instance).__module__}.{type(self.instance).__qualname__}"
        self.assertEqual(path.rpartition(".")[2], self.backend["BACKEND"].rpartition(".")[2])

    def test_enqueue_returns_a_result(self) -> None:
        for function in (noop, noop_async):
            with self.subTest(function.name):
                if function is noop_async:
                    self.need("supports_async_task")
                result = function.enqueue(1, two=3)
                self.assertIsInstance(result, TaskResult)
                self.assertIsInstance(result.id, str)
                self.assertEqual((result.args, result.kwargs), ([1], {"two": 3}))
                self.assertEqual(result.task.func, function.func)
                self.assertEqual(result.backend, "default")
                self.assertIsNotNone(result.enqueued_at)
                self.assertIn(result.status, TaskResultStatus)
                if not result.is_finished:
                    self.assertEqual(result.status, TaskResultStatus.READY)
                    self.assertIsNone(result.started_at)
                    self.assertIsNone(result.finished_at)
                    self.assertIsNone(result.last_attempted_at)
                    self.assertEqual((result.errors, result.worker_ids), ([], []))
                    self.assertEqual(result.attempts, 0)
                    message = "Task has not finished yet"
                    with self.assertRaisesMessage(ValueError, message):  # type: ignore[attr-defined]
                        _ = result.return_value

    async def test_aenqueue_returns_a_result(self) -> None:
        for function in (noop, noop_async):
            with self.subTest(function.name):
                if function is noop_async:
                    self.need("supports_async_task")
                result = await function.aenqueue(1, two=3)
                self.assertEqual((result.args, result.kwargs), ([1], {"two": 3}))
                self.assertEqual(result.task.func, function.func)

    def test_each_call_has_its_own_id(self) -> None:
        self.assertNotEqual(noop.enqueue().id, noop.enqueue().id)

    def test_arguments_are_normalized_to_json(self) -> None:
        result = noop.enqueue((1, 2), pairs=((1, 2), {"key": (3,)}), text=b"bytes")
        self.assertEqual(result.args, [[1, 2]])
        self.assertEqual(result.kwargs, {"pairs": [[1, 2], {"key": [3]}], "text": "bytes"})

    def test_arguments_that_are_no_json_are_refused(self) -> None:
        for value in (object(), {1, 2}, noop):
            with self.subTest(repr(value)[:20]), self.assertRaises(TypeError):
                noop.enqueue(value)

    def test_later_changes_of_arguments_have_no_effect(self) -> None:
        values = [1]
        result = echo.enqueue(values)
        values.append(2)
        self.assertEqual(result.args, [[1]])
        if self.runs_tasks and self.instance.supports_get_result:
            self.run_tasks()
            self.assertEqual(self.instance.get_result(result.id).return_value, [1])

    def test_a_task_object_can_be_called(self) -> None:
        self.assertEqual(add.call(1, b=2), 3)
        self.assertEqual(add_async.call(1, b=2), 3)

    async def test_a_task_object_can_be_called_and_awaited(self) -> None:
        self.assertEqual(await add.acall(1, b=2), 3)
        self.assertEqual(await add_async.acall(1, b=2), 3)

    # Runs.

    def test_the_return_value_is_stored(self) -> None:
        for function in (add, add_async):
            with self.subTest(function.name):
                if function is add_async:
                    self.need("supports_async_task")
                before = timezone.now() - timedelta(seconds=5)
                result = self.finished(function, 40, b=2)
                self.assertEqual(result.status, TaskResultStatus.SUCCESSFUL)
                self.assertTrue(result.is_finished)
                self.assertEqual(result.return_value, 42)
                self.assertEqual(result.errors, [])
                self.assertEqual(result.attempts, 1)
                self.assertEqual(len(result.worker_ids), 1)
                self.assertLess(before, result.enqueued_at)
                self.assertLessEqual(
                    result.enqueued_at - timedelta(seconds=1), result.started_at
                )  # two clocks
                self.assertLessEqual(result.started_at, result.finished_at)
                self.assertIsNotNone(result.last_attempted_at)

    def test_a_task_may_return_none(self) -> None:
        result = self.finished(noop)
        self.assertEqual(result.status, TaskResultStatus.SUCCESSFUL)
        self.assertIsNone(result.return_value)

    def test_the_return_value_is_normalized_to_json(self) -> None:
        self.assertEqual(self.finished(return_tuple).return_value, {"pair": [1, 2]})

    def test_a_return_value_that_is_no_json_is_a_failure(self) -> None:
        error = self.failed(return_function)
        self.assertTrue(issubclass(error.exception_class, TypeError))

    def test_an_exception_is_an_error_of_the_result(self) -> None:
        for function in (raise_value_error, raise_value_error_async):
            with self.subTest(function.name):
                if function is raise_value_error_async:
                    self.need("supports_async_task")
                error = self.failed(function)
                self.assertEqual(error.exception_class_path, "builtins.ValueError")
                self.assertIs(error.exception_class, ValueError)
                self.assertIn(function.name, error.traceback)
                self.assertIn("This Task failed due to ValueError", error.traceback)

    def test_an_exception_that_cannot_be_serialized_is_an_error_of_the_result(self) -> None:
        error = self.failed(raise_complex_error)
        self.assertIs(error.exception_class, SuiteError)
        self.assertIn("SuiteError", error.traceback)

    def test_wrong_arguments_fail_in_enqueue_or_in_the_run(self) -> None:
        try:
            result = self.finished(add, unknown=1)
        except TypeError:
            return
        self.assertEqual(result.status, TaskResultStatus.FAILED)
        self.assertIs(result.errors[0].exception_class, TypeError)

    def test_system_exit_is_an_error_of_the_result(self) -> None:
        self.need("records_system_exit")
        error = self.failed(raise_system_exit)
        self.assertIs(error.exception_class, SystemExit)
        self.assertIn("SystemExit", error.traceback)

    def test_keyboard_interrupt_is_raised(self) -> None:
        self.need("raises_keyboard_interrupt", "runs_tasks")
        with self.assertRaises(KeyboardInterrupt):
            raise_keyboard_interrupt.enqueue()
            self.run_tasks()

    def test_a_failed_task_does_not_prevent_others(self) -> None:
        self.need("runs_tasks", "supports_get_result")
        with self.collected():
            failing, succeeding = raise_value_error.enqueue(), add.enqueue(1)
        self.run_tasks()
        failing.refresh()
        succeeding.refresh()
        self.assertEqual(failing.status, TaskResultStatus.FAILED)
        self.assertEqual(succeeding.return_value, 2)

    def test_the_context_has_the_attempt_and_the_result(self) -> None:
        result = self.finished(attempt_and_id, suffix="!")
        self.assertEqual(result.return_value, [1, f"{result.id}!"])
        self.assertEqual(result.kwargs, {"suffix": "!"})

    def test_async_tasks_take_the_context(self) -> None:
        self.need("supports_async_task")
        self.assertEqual(self.finished(attempt_async).return_value, 1)

    # Results.

    def test_get_result_returns_the_result(self) -> None:
        self.need("supports_get_result")
        result = add.enqueue(1)
        for fetched in (self.instance.get_result(result.id), add.get_result(result.id)):
            self.assertEqual(fetched.id, result.id)
            self.assertEqual(fetched.task, result.task)
            self.assertEqual((fetched.args, fetched.kwargs), (result.args, result.kwargs))
            self.assertEqual(fetched.enqueued_at, result.enqueued_at)

    async def test_aget_result_returns_the_result(self) -> None:
        self.need("supports_get_result")
        result = await add.aenqueue(1)
        for fetched in (
            await self.instance.aget_result(result.id),
            await add.aget_result(result.id),
        ):
            self.assertEqual(fetched.id, result.id)
            self.assertEqual(fetched.task, result.task)

    def test_a_result_that_does_not_exist_is_an_error(self) -> None:
        self.need("supports_get_result")
        missing = noop.enqueue().id[:-4] + "0000"
        for result_id in ("missing", "123", "", missing):
            with self.subTest(result_id), self.assertRaises(TaskResultDoesNotExist):
                self.instance.get_result(result_id)

    async def test_a_result_that_does_not_exist_is_an_error_of_aget_result(self) -> None:
        self.need("supports_get_result")
        with self.assertRaises(TaskResultDoesNotExist):
            await self.instance.aget_result("missing")

    def test_a_result_of_another_task_is_an_error(self) -> None:
        self.need("supports_get_result")
        result = noop.enqueue()
        with self.assertRaises(TaskResultMismatch):
            add.get_result(result.id)

    async def test_a_result_of_another_task_is_an_error_of_aget_result(self) -> None:
        self.need("supports_get_result")
        result = await noop.aenqueue()
        with self.assertRaises(TaskResultMismatch):
            await add.aget_result(result.id)

    def test_refresh_reads_what_has_changed(self) -> None:
        self.need("supports_get_result", "runs_tasks")
        with self.collected():
            result = add.enqueue(1)
            fetched = self.instance.get_result(result.id)
        self.run_tasks()
        fetched.refresh()
        self.assertEqual(fetched.status, TaskResultStatus.SUCCESSFUL)
        self.assertEqual(fetched.return_value, 2)
        self.assertEqual(fetched.attempts, 1)

    async def test_arefresh_reads_the_result(self) -> None:
        self.need("supports_get_result")
        result = await add.aenqueue(1)
        await result.arefresh()
        self.assertIsNotNone(result.enqueued_at)

    # Options of a call.

    def test_using_changes_a_copy(self) -> None:
        changed = noop.using(queue_name="queue-1")
        self.assertEqual((changed.queue_name, noop.queue_name), ("queue-1", "default"))
        self.assertEqual(changed.enqueue().task.queue_name, "queue-1")
        self.assertEqual(noop.enqueue().task.queue_name, "default")

    def test_the_queue_is_part_of_the_stored_result(self) -> None:
        self.need("supports_get_result")
        result = noop.using(queue_name="queue-1").enqueue()
        self.assertEqual(self.instance.get_result(result.id).task.queue_name, "queue-1")

    def test_priorities_are_kept(self) -> None:
        self.need("supports_priority")
        for priority in (-100, -1, 0, 1, 37, 100):
            with self.subTest(priority):
                result = noop.using(priority=priority).enqueue()
                self.assertEqual(result.task.priority, priority)
                if self.instance.supports_get_result:
                    fetched = self.instance.get_result(result.id)
                    self.assertEqual(fetched.task.priority, priority)

    def test_a_higher_priority_runs_first(self) -> None:
        self.need("supports_priority", "runs_tasks", "runs_in_this_process")
        with self.collected():
            for priority in (0, -100, 100):
                if record.using(priority=priority).enqueue(priority).is_finished:
                    self.skipTest("The backend runs tasks in enqueue().")
        if calls:
            self.skipTest("The backend runs tasks before run_tasks().")
        self.run_tasks()
        self.assertEqual(calls, [100, 0, -100])

    def test_run_after_in_the_past_runs(self) -> None:
        self.need("supports_defer")
        past = noop.using(run_after=self._time(hours=-1))
        self.assertEqual(self.finished(past).status, TaskResultStatus.SUCCESSFUL)

    def test_run_after_in_the_future_waits(self) -> None:
        self.need("supports_defer")
        at = self._time(hours=1)
        result = record.using(run_after=at).enqueue("later")
        self.assertEqual(result.task.run_after, at)
        if result.is_finished:
            self.skipTest("The backend runs tasks in enqueue().")
        self.run_tasks()
        self.assertEqual(calls, [])
        if self.instance.supports_get_result:
            fetched = self.instance.get_result(result.id)
            self.assertEqual(fetched.status, TaskResultStatus.READY)
            self.assertEqual(fetched.task.run_after, at)

    def _time(self, hours: int) -> datetime:
        now: datetime = timezone.now().replace(microsecond=0)
        return now + timedelta(hours=hours)

    # Validation.

    def test_only_functions_of_a_module_are_tasks(self) -> None:
        def local() -> None:
            pass

        for function in (lambda: None, local):
            with self.subTest(function.__qualname__), self.assertRaises(InvalidTask):
                task(function)

    def test_priorities_out_of_range_are_refused(self) -> None:
        for priority in (-101, 101, 3.5):
            with self.subTest(priority), self.assertRaises(InvalidTask):
                noop.using(priority=priority)

    def test_priorities_are_refused_if_they_are_not_supported(self) -> None:
        if self.instance.supports_priority:
            self.skipTest("The backend supports priorities.")
        with self.assertRaises(InvalidTask):
            noop.using(priority=1)

    def test_an_unknown_queue_is_refused(self) -> None:
        with self.assertRaises(InvalidTask):
            noop.using(queue_name="unknown-queue")

    def test_an_unknown_backend_is_refused(self) -> None:
        with self.assertRaises(InvalidTaskBackend):
            noop.using(backend="unknown")

    def test_a_naive_run_after_is_refused(self) -> None:
        with override_settings(USE_TZ=True), self.assertRaises(InvalidTask):
            noop.using(run_after=datetime(2030, 1, 1))  # noqa: DTZ001 - what is refused

    def test_run_after_is_refused_if_it_is_not_supported(self) -> None:
        if self.instance.supports_defer:
            self.skipTest("The backend supports run_after.")
        with self.assertRaises(InvalidTask):
            noop.using(run_after=self._time(hours=1))

    def test_run_after_is_no_option_of_the_decorator(self) -> None:
        with self.assertRaises(TypeError):
            task(run_after=self._time(hours=1))(_plain)

    def test_async_functions_are_refused_if_they_are_not_supported(self) -> None:
        if self.instance.supports_async_task:
            self.skipTest("The backend supports async functions.")
        with self.assertRaises(InvalidTask):
            noop_async.enqueue()

    def test_a_task_with_context_needs_the_parameter(self) -> None:
        with self.assertRaises(InvalidTask):
            task(takes_context=True)(noop.func)

    def test_enqueue_validates_again(self) -> None:
        settings = {**self.backend, "QUEUES": ["queue-1"]}
        with override_settings(TASKS={"default": settings}), self.assertRaises(InvalidTask):
            noop.enqueue()

    def test_the_system_checks_of_the_backend_pass(self) -> None:
        problems = [problem for problem in self.instance.check() if problem.is_serious()]
        self.assertEqual(problems, [])

    # Signals.

    def test_signals_of_a_success(self) -> None:
        sender = type(self.instance)
        enqueued = ("task_enqueued", sender, TaskResultStatus.READY, None)
        if not (self.runs_tasks and self.runs_in_this_process):
            with self.signals() as seen:
                noop.enqueue()
            self.assertEqual(seen, [enqueued])
            return
        with self.signals() as seen:
            noop.enqueue()
            self.run_tasks()
        self.assertEqual(
            seen,
            [
                enqueued,
                ("task_started", sender, TaskResultStatus.RUNNING, None),
                ("task_finished", sender, TaskResultStatus.SUCCESSFUL, None),
            ],
        )

    def test_signals_of_a_failure_are_sent_while_it_is_handled(self) -> None:
        self.need("runs_tasks", "runs_in_this_process")
        with self.signals() as seen:
            raise_value_error.enqueue()
            self.run_tasks()
        self.assertEqual([name for name, *_ in seen][1:], ["task_started", "task_finished"])
        sender, status, error = seen[-1][1:]
        self.assertIs(sender, type(self.instance))
        self.assertEqual(status, TaskResultStatus.FAILED)
        self.assertIsNotNone(error)

    def test_no_signal_is_sent_for_a_refused_call(self) -> None:
        with self.signals() as seen, self.assertRaises(TypeError):
            noop.enqueue(object())
        self.assertEqual(seen, [])

    # Transactions.

    def test_enqueue_does_not_wait_for_the_commit(self) -> None:
        with self.signals() as seen, transaction.atomic():
            result = noop.enqueue()
            self.assertIsNotNone(result.enqueued_at)
            self.assertEqual(seen[0][0], "task_enqueued")

    def test_a_committed_task_runs(self) -> None:
        self.need("runs_tasks", "supports_get_result")
        with transaction.atomic():
            result = add.enqueue(1)
        self.run_tasks()
        self.assertEqual(self.instance.get_result(result.id).return_value, 2)

    def test_a_rolled_back_task_does_not_exist(self) -> None:
        self.need("is_transactional")
        with transaction.atomic():
            result = record.enqueue("rolled back")
            transaction.set_rollback(True)
        self.run_tasks()
        self.assertEqual(calls, [])
        with self.assertRaises(TaskResultDoesNotExist):
            self.instance.get_result(result.id)

    # Copies.

    def test_results_can_be_copied(self) -> None:
        result = noop.enqueue(1)
        self.assertEqual(copy.deepcopy(result).id, result.id)

    def test_tasks_and_results_can_be_pickled(self) -> None:
        if not hasattr(Task, "_reconstruct"):
            self.skipTest("Django pickles tasks since 6.1.")
        changed = noop.using(queue_name="queue-1")
        for value in (noop, changed, noop.enqueue(1)):
            with self.subTest(type(value).__name__):
                copied = pickle.loads(pickle.dumps(value))  # noqa: S301 - pickled above
                self.assertEqual(copied, value)
        self.assertEqual(pickle.loads(pickle.dumps(changed)).queue_name, "queue-1")  # noqa: S301

    def test_the_task_class_of_the_backend_is_a_task(self) -> None:
        self.assertTrue(inspect.isclass(self.instance.task_class))
        self.assertTrue(issubclass(self.instance.task_class, Task))
        created = task(_plain)
        self.assertIs(type(created), self.instance.task_class)
