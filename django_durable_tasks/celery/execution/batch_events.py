"""Celery's signals and hooks of the tasks of a batch.

A batch is one message, so Celery sends its signals once. Receivers of the project and the hooks of
the task's class are called for each task here, as if the task had a message of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from billiard.einfo import ExceptionInfo
from celery import Task as CeleryTask
from celery import signals, states
from celery.exceptions import Ignore, Reject
from celery.exceptions import Retry as CeleryRetry
from celery.utils.serialization import get_pickleable_exception

from django_durable_tasks.celery.execution.live_runs import LiveRun

logger = logging.getLogger("django_durable_tasks.runs")
_NOT_OF_PROJECT = ("django_durable_tasks.", "celery.fixups.")


def _receivers(signal: Any, sender: Any) -> list[Callable[..., Any]]:
    return [
        receiver
        for receiver in signal._live_receivers(sender)
        if not str(getattr(receiver, "__module__", "")).startswith(_NOT_OF_PROJECT)
    ]


def follow_success(task: Any) -> bool:
    """Return whether something is called after a success of this task: receivers of the project or
    hooks of its class. The success is recorded first then.
    """
    return bool(
        _receivers(signals.task_success, task)
        or _receivers(signals.task_postrun, task)
        or any(_is_overridden(task, hook) for hook in ("on_success", "after_return"))
    )


def _is_overridden(task: Any, hook: str) -> bool:
    return getattr(type(task), hook) is not getattr(CeleryTask, hook)


class TaskEvents:
    """The receivers and hooks of one task."""

    def __init__(self, task: Any) -> None:
        self._task = task
        self._signals = {
            name: _receivers(getattr(signals, name), task)
            for name in (
                "task_prerun",
                "task_postrun",
                "task_success",
                "task_failure",
                "task_retry",
            )
        }
        self._hooks = {
            name
            for name in ("on_success", "on_failure", "on_retry", "after_return")
            if _is_overridden(task, name)
        }
        self.follow_success = follow_success(task)

    def before(self, live: LiveRun) -> None:
        """Call the receivers before the function, and the method of the project's loader."""
        if self._signals["task_prerun"]:
            self._send("task_prerun", **self._of(live))
        self._task.app.loader.on_task_init(live.run.celery_id, self._task)

    def succeeded(self, live: LiveRun, value: Any) -> None:
        """Call receivers and hooks after a success was recorded."""
        self._call("on_success", value, str(live.run.task_id), live.args, live.kwargs)
        self._send("task_success", result=value)
        self._after(live, states.SUCCESS, value)

    def failed(self, live: LiveRun, error: BaseException) -> None:
        """Call receivers and hooks after another ending was recorded.

        ``error`` is what the gate raised to Celery. Called while it is handled. An exception that
        is no Exception ends a message without hooks.
        """
        if isinstance(error, CeleryRetry):
            if self._follows("on_retry", "task_retry"):
                einfo = ExceptionInfo()
                self._call("on_retry", error.exc, *self._row(live), einfo)
                self._send("task_retry", request=self._task.request, reason=error, einfo=einfo)
            state: str | None = states.RETRY
        elif isinstance(error, Ignore | Reject):
            state = states.IGNORED if isinstance(error, Ignore) else states.REJECTED
        elif isinstance(error, Exception):
            self._send_failure(live, error)
            state = states.FAILURE
        else:
            state = None
        self._after(live, state, None if state is None else error)
        if state is None:
            self._send_failure(live, error)  # by the pool, after Celery's tracer

    def _send_failure(self, live: LiveRun, error: BaseException) -> None:
        if not self._follows("on_failure", "task_failure"):
            return
        einfo = ExceptionInfo()
        if isinstance(error, Exception):
            error = get_pickleable_exception(error)  # as Celery does
            self._call("on_failure", error, *self._row(live), einfo)
        self._send(
            "task_failure",
            task_id=live.run.celery_id,
            exception=error,
            args=live.args,
            kwargs=live.kwargs,
            traceback=error.__traceback__,
            einfo=einfo,
        )

    def _follows(self, hook: str, signal: str) -> bool:
        return hook in self._hooks or bool(self._signals[signal])

    def _after(self, live: LiveRun, state: str | None, value: Any) -> None:
        if state in (states.SUCCESS, states.FAILURE):
            self._call("after_return", state, value, *self._row(live), None)
        self._send("task_postrun", retval=value, state=state, **self._of(live))

    def _row(self, live: LiveRun) -> tuple[str, list[Any], dict[str, Any]]:
        return str(live.run.task_id), live.args, live.kwargs

    def _of(self, live: LiveRun) -> dict[str, Any]:
        return {
            "task_id": live.run.celery_id,
            "task": self._task,
            "args": live.args,
            "kwargs": live.kwargs,
        }

    def _send(self, name: str, **named: Any) -> None:
        for receiver in self._signals[name]:
            try:
                receiver(signal=getattr(signals, name), sender=self._task, **named)
            except SystemExit:
                raise
            except BaseException:
                logger.exception("The receiver %r of %s raised an exception.", receiver, name)

    def _call(self, hook: str, *given: Any) -> None:
        if hook not in self._hooks:
            return
        try:
            getattr(self._task, hook)(*given)
        except SystemExit:
            raise
        except BaseException:
            logger.exception("%s of %s raised an exception.", hook, self._task.name)
