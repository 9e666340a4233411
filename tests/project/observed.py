"""One function as two durable tasks, by message and in batches, whose hooks and signals are
recorded. What happens is decided by the argument.
"""

from __future__ import annotations

import sys
from typing import Any

from celery import signals
from celery.exceptions import Ignore, Reject
from django.db.models import F

from django_durable_tasks import Retry, Schedule, durable_task
from django_durable_tasks.celery.live_runs import process_runs
from django_durable_tasks.celery.task import DurableTask
from django_durable_tasks.models import Task
from tests.project import bodies

seen: list[tuple[str, str, str]] = []
"""What was called: the id of the task, hook or signal, and its state or error."""


class Interrupted(BaseException):
    """Not an Exception."""


def _note(task_id: object, event: str, detail: object = "") -> None:
    text = f"{type(detail).__name__}: {detail}" if isinstance(detail, BaseException) else detail
    seen.append((str(task_id).partition(".")[0], event, str(text)))


def _raise_if(act: object, *acts: str) -> None:
    if act in acts or act in [[one] for one in acts]:
        raise LookupError(f"{act} raises")


class Observed(DurableTask):
    """Records its hooks. Some of them raise."""

    abstract = True

    def __call__(self, act: str, *args: Any, **kwargs: Any) -> Any:
        _note(self.request.id, "__call__", act)
        _raise_if(act, "__call__")
        if act == "__call__ returns":
            return "from __call__"
        return super().__call__(act, *args, **kwargs)

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        _note(task_id, "before_start", args)
        _raise_if(args[:1], "before_start")

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        _note(task_id, "on_success", retval)
        _raise_if(args[:1], "on_success")

    def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        _note(task_id, "on_failure", exc)
        assert "Traceback" in einfo.traceback
        _raise_if(args[:1], "on_failure")

    def on_retry(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        _note(task_id, "on_retry", exc)
        assert "Traceback" in einfo.traceback
        _raise_if(args[:1], "on_retry")

    def after_return(
        self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: Any
    ) -> None:
        _note(task_id, "after_return", status)
        _raise_if(args[:1], "after_return")


def _cancelled(task: Any) -> None:
    Task.objects.filter(pk=task.request.id).cancel(by="bob", reason="enough")
    process_runs.leases.renew()
    task.durable.check()


def _fenced(task: Any) -> str:
    Task.objects.unguarded().filter(pk=task.request.id).update(epoch=F("epoch") + 1)
    return "fenced"


class Stubborn(Exception):
    """Cannot be created from its arguments."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(one)


def act(self: Any, kind: str) -> Any:
    """End as ``kind`` says."""
    match kind:
        case "fails" | "on_retry":
            raise ValueError("no luck")
        case "fails for good" | "on_failure":
            raise TypeError("never")
        case "asks":
            raise Retry(after=600)
        case "retries":
            raise self.retry(countdown=600, exc=KeyError("later"))
        case "retries later":
            self.retry(countdown=600, throw=False)
        case "ignores":
            raise Ignore("no need")
        case "rejects":
            raise Reject("not me", requeue=False)
        case "requeues":
            raise Reject("not now", requeue=True)
        case "is cancelled":
            _cancelled(self)
        case "is fenced":
            return _fenced(self)
        case "stubborn":
            raise Stubborn("one", "two")
        case "returns a set":
            return {1}
        case "follows":
            return Schedule(bodies.add, (1, 2))
        case "interrupts":
            raise KeyboardInterrupt
        case "closes":
            raise GeneratorExit
        case "breaks":
            raise Interrupted("through")
        case "exits":
            sys.exit(3)
    return kind


KINDS = (
    *("fails", "fails for good", "asks", "retries", "retries later", "ignores", "rejects"),
    *("requeues", "is cancelled", "is fenced", "stubborn", "returns a set", "follows"),
    *("interrupts", "closes", "breaks", "exits", "__call__", "__call__ returns"),
    *("before_start", "on_success", "on_failure", "on_retry", "after_return"),
    *("task_prerun", "task_success", "task_failure", "task_retry", "task_postrun", "loader"),
)
SLOWLY: dict[str, Any] = {"backoff": "FIXED", "backoff_base": 600, "give_up_on": TypeError}
alone = durable_task(name="tests.observed.alone", base=Observed, bind=True, **SLOWLY)(act)
together = durable_task(
    name="tests.observed.together", base=Observed, bind=True, batch=50, **SLOWLY
)(act)
unhooked = durable_task(name="tests.observed.unhooked", bind=True, batch=50, **SLOWLY)(act)


def _observe(name: str) -> None:
    signal = getattr(signals, name)

    def receive(sender: Any = None, **named: Any) -> None:
        detail = named.get("state", named.get("exception", named.get("reason", "")))
        _note(sender.request.id or named.get("task_id"), name, detail)
        args = Task.objects.get(
            pk=str(sender.request.id or named["task_id"]).partition(".")[0]
        ).args
        if args[0] == name:
            raise LookupError(f"{name} raises")

    for task in (alone, together):
        signal.connect(receive, sender=task, weak=False)


for _name in ("task_prerun", "task_success", "task_failure", "task_retry", "task_postrun"):
    _observe(_name)
