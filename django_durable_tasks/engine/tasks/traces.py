"""Adds the trace of the caller to new tasks, if TRACES is set."""

from __future__ import annotations

from collections.abc import Sequence

from django_durable_tasks import ports
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


def traced_together(tasks: Sequence[NewTask], name: str = "") -> list[NewTask]:
    """Return tasks that are created together, all with one context.

    ``name``: that of their workflow. Otherwise they are tasks of the same name and options.
    """
    if ports.traces is None or not tasks:
        return list(tasks)
    first = tasks[0]
    context = ports.traces.created(name or first.name, first.queue, "", len(tasks), [])
    return list(tasks) if context is None else [_with_trace(one, context) for one in tasks]


def _with_trace(task: NewTask, context: str, links: Sequence[str] = ()) -> NewTask:
    return task._replace(options=with_trace(task.options, context, links))
