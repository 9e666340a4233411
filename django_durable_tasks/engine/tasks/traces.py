"""Adds the trace of the caller to new tasks, if TRACES is set."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Sized
from typing import Any

from django_durable_tasks import ports
from django_durable_tasks.engine.tasks.new_task import TaskTemplate
from django_durable_tasks.models import Task
from django_durable_tasks.rules.tasks.new_task import NewTask
from django_durable_tasks.rules.tasks.trace_context import traceparents, with_trace


def traced(task: NewTask, upstreams: Sequence[Task] = ()) -> NewTask:
    """Return the task with the context of its creation, and those of its upstreams."""
    if ports.traces is None:
        return task
    links = traceparents([upstream.options for upstream in upstreams])
    context = ports.traces.created(task.name, task.queue, str(task.id), 1, links)
    return task if context is None else _with_trace(task, context, links)


def traced_together(tasks: Sequence[NewTask], name: str) -> list[NewTask]:
    """Return the tasks of the workflow of this name, all with one context."""
    return list(_tracer(tasks, len(tasks), name)(tasks))


def tracer(
    template: TaskTemplate, first: Sequence[tuple[Any, ...]], calls: Iterable[Any]
) -> Callable[[Sequence[NewTask]], Sequence[NewTask]]:
    """Return a function that adds one context to all tasks of a bulk call.

    ``first``: the arguments of the first calls. ``calls``: all calls, which are counted if they
    have a length.
    """
    if ports.traces is None:
        return _unchanged
    number = len(calls) if isinstance(calls, Sized) else len(first)
    return _tracer(template.many(first[:1]), number)


def _tracer(
    tasks: Sequence[NewTask], number: int, name: str = ""
) -> Callable[[Sequence[NewTask]], Sequence[NewTask]]:
    if ports.traces is None or not tasks:
        return _unchanged
    first = tasks[0]
    context = ports.traces.created(name or first.name, first.queue, "", number, [])
    if context is None:
        return _unchanged
    return lambda new: [_with_trace(one, context) for one in new]


def _unchanged(tasks: Sequence[NewTask]) -> Sequence[NewTask]:
    return tasks


def _with_trace(task: NewTask, context: str, links: Sequence[str] = ()) -> NewTask:
    return task._replace(options=with_trace(task.options, context, links))
