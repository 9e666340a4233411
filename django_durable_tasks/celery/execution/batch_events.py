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
        """Call the receivers before the function."""
        if self._signals["task_prerun"]:
            self._send("task_prerun", **self._of(live))

    def succeeded(self, live: LiveRun, value: Any) -> None:
        """Call receivers and hooks after a success was recorded."""
        self._call("on_success", value, str(live.run.task_id), live.args, live.kwargs)
        self._send("task_success", result=value)
        self._after(live, states.SUCCESS, value, None)

    def failed(self, live: LiveRun, error: BaseException) -> None:
        """Call receivers and hooks after another ending was recorded; ``error`` is what the gate
        would raise to Celery.
        """
        if isinstance(error, Ignore | Reject):
            self._after(live, states.IGNORED, None, None)
            return
        einfo = ExceptionInfo((type(error), error, error.__traceback__))
        row = (error, str(live.run.task_id), live.args, live.kwargs, einfo)
        if isinstance(error, CeleryRetry):
            self._call("on_retry", *row)
            self._send("task_retry", request=self._task.request, reason=error, einfo=einfo)
            self._after(live, states.RETRY, error, einfo)
            return
        self._call("on_failure", *row)
        self._send(
            "task_failure",
            task_id=live.run.celery_id,
            exception=error,
            args=live.args,
            kwargs=live.kwargs,
            traceback=error.__traceback__,
            einfo=einfo,
        )
        self._after(live, states.FAILURE, error, einfo)

    def _after(self, live: LiveRun, state: str, value: Any, einfo: Any) -> None:
        row = (state, value, str(live.run.task_id), live.args, live.kwargs, einfo)
        self._call("after_return", *row)
        self._send("task_postrun", retval=value, state=state, **self._of(live))

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
            except Exception:
                logger.exception("The receiver %r of %s raised an exception.", receiver, name)

    def _call(self, hook: str, *given: Any) -> None:
        if hook not in self._hooks:
            return
        try:
            getattr(self._task, hook)(*given)
        except Exception:
            logger.exception("%s of %s raised an exception.", hook, self._task.name)
