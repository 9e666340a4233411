"""Pairs of tasks with the same body and options: a plain Celery task and a durable one; see
tests/broker/celery_usage.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from celery import Task, current_app, current_task, shared_task

from django_durable_tasks import durable_task
from django_durable_tasks.celery.task import DurableTask
from tests.project.bodies import note
from tests.waiting import until


@dataclass(frozen=True, slots=True)
class Pair:
    """The same body as a plain task and as a durable one."""

    plain: Any
    durable: Any


def pair(hooks: type | None = None, **options: Any) -> Callable[[Callable[..., Any]], Pair]:
    """Create both tasks of a body, with the same Celery options and hooks."""

    def decorate(body: Callable[..., Any]) -> Pair:
        plain, durable = dict(options), dict(options)
        if hooks is not None:
            plain["base"] = type("Plain", (hooks, Task), {"abstract": True})
            durable["base"] = type("Durable", (hooks, DurableTask), {"abstract": True})
        return Pair(
            shared_task(name=f"celery_usages.plain.{body.__name__}", **plain)(body),
            durable_task(name=f"celery_usages.durable.{body.__name__}", **durable)(body),
        )

    return decorate


@pair()
def add(left: int, right: int) -> int:
    """Return the sum."""
    return left + right


@pair()
def write(notebook: str) -> None:
    """Append a line."""
    note("run", notebook)


@pair(bind=True, max_retries=2)
def fail_beside_max_retries(self: Any, notebook: str) -> None:
    """Raise an error in a task that retries only by ``self.retry()``."""
    note("run", notebook)
    raise KeyError("broken")


@pair(default_retry_delay=0.05)
def fail_beside_default_retry_delay(notebook: str) -> None:
    """Raise an error in a task whose only retry option is a delay."""
    note("run", notebook)
    raise KeyError("broken")


class Patient:
    """A task class with retry options."""

    autoretry_for = (ValueError,)
    max_retries = 1
    default_retry_delay = 0.05


@pair(Patient)
def fail_by_the_options_of_a_class(notebook: str, name: str) -> None:
    """Raise a built-in error by its name in a task whose class retries one kind of error once."""
    note("run", notebook)
    raise {"ValueError": ValueError, "KeyError": KeyError}[name]("broken")


@pair()
def notes_of(notebook: str) -> str:
    """Return the path to write to, for a following task."""
    return notebook


@pair(bind=True)
def wait(self: Any, notebook: str) -> str:
    """Record that it runs, and run until the file beside the notebook exists."""
    note("run", notebook)
    until(Path(f"{notebook}.released").exists, within=60)
    return "released"


@pair()
def wait_for_another(name: str) -> Any:
    """Wait for the result of another task inside of a task."""
    return current_app.tasks[name].delay(1, 2).get(timeout=20)


@pair()
def fail(notebook: str) -> None:
    """Raise an error, without any retry options."""
    note("run", notebook)
    raise KeyError("broken")


@pair(autoretry_for=(ValueError,), retry_kwargs={"max_retries": 1, "countdown": 0})
def fail_by_autoretry(notebook: str, name: str) -> None:
    """Raise a built-in error by its name in a task that retries one kind of error once."""
    note("run", notebook)
    raise {"ValueError": ValueError, "KeyError": KeyError}[name]("broken")


@pair(autoretry_for=(Exception,), dont_autoretry_for=(KeyError,), default_retry_delay=0.05)
def fail_by_autoretry_of_most(notebook: str, name: str) -> None:
    """Raise a built-in error by its name in a task that retries all but one kind."""
    fail_by_autoretry.plain.run(notebook, name)


class Refused(Exception):
    """An error with two arguments."""


class Hooks:
    """Celery's hooks. Each appends its arguments to the notebook file, which is the first argument."""

    def _wrote(self, hook: str, task_id: str, args: Any, kwargs: Any, *given: Any) -> None:
        note(f"{hook} {task_id} {list(args)[1:]} {kwargs} {given}", args[0])

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        """Before the function."""
        self._wrote("before_start", task_id, args, kwargs)

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        """After a success."""
        self._wrote("on_success", task_id, args, kwargs, retval)

    def on_retry(
        self, exc: BaseException, task_id: str, args: Any, kwargs: Any, einfo: Any
    ) -> None:
        """Before another attempt."""
        self._wrote("on_retry", task_id, args, kwargs, exc)

    def on_failure(
        self, exc: BaseException, task_id: str, args: Any, kwargs: Any, einfo: Any
    ) -> None:
        """After a failure without another attempt."""
        self._wrote("on_failure", task_id, args, kwargs, exc)

    def after_return(
        self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: Any
    ) -> None:
        """After each ending."""
        self._wrote("after_return", task_id, args, kwargs, status)


@pair(Hooks, bind=True, max_retries=1, default_retry_delay=0.05)
def hooked(self: Any, notebook: str, left: int, *, fail: bool) -> int:
    """Return the number, or fail twice."""
    if fail:
        raise self.retry(exc=KeyError("broken"))
    return left


@pair(bind=True)
def request_values(self: Any, notebook: str, times: int) -> dict[str, Any]:
    """Retry `times` times, and return the values of the request."""
    note(self.request.id, notebook)
    if self.request.retries < times:
        raise self.retry(countdown=0)
    request = self.request
    return {
        "id": request.id,
        "root_id": request.root_id,
        "args": list(request.args),
        "kwargs": request.kwargs,
        "retries": request.retries,
        "header": (request.headers or {}).get("x-tenant"),
        "current": current_task.request.id,
    }


@pair(bind=True)
def report_state(self: Any, notebook: str) -> str:
    """Report a custom state, and run until the file beside the notebook exists."""
    self.update_state(state="PROGRESS", meta={"done": 1})
    until(Path(f"{notebook}.released").exists, within=60)
    return "released"


@pair(bind=True)
def replace(self: Any, notebook: str) -> Any:
    """Replace this task by another one."""
    note("run", notebook)
    return self.replace(add.plain.s(1, 2))


@pair(max_retries=0)
def fail_by_own_error(code: int, what: str) -> None:
    """Raise an exception of the project."""
    raise Refused(code, what)


@pair(bind=True, max_retries=1, default_retry_delay=0.05)
def fail_by_retry_once(self: Any, notebook: str) -> None:
    """Request a retry, at most once and soon, as the decorator says."""
    note(f"run {self.request.retries}", notebook)
    raise self.retry(exc=KeyError("not yet"))


@pair(bind=True, default_retry_delay=0.05)
def fail_by_retry_without_limit(self: Any, notebook: str) -> None:
    """Request a retry, as often as Celery allows by default."""
    note(f"run {self.request.retries}", notebook)
    raise self.retry()


@pair(bind=True)
def retry_and_go_on(self: Any, notebook: str) -> str:
    """Request a retry, and continue to the end."""
    note(f"run {self.request.retries}", notebook)
    if self.request.retries < 2:
        self.retry(countdown=0, throw=False)
    return "end"


@pair(bind=True)
def fail_in_an_exhausted_retry(self: Any, notebook: str) -> None:
    """Fail with another error when no retry is left."""
    note(f"run {self.request.retries}", notebook)
    try:
        raise LookupError("away")
    except LookupError:
        self.retry(max_retries=0)


@pair(bind=True)
def fail_by_retry(self: Any, notebook: str, **options: Any) -> None:
    """Record the number of the retry, and request another one by Celery's means."""
    note(f"run {self.request.retries}", notebook)
    raise self.retry(exc=KeyError("not yet"), **options)
