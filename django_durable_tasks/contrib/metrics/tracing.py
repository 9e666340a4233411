"""Spans of OpenTelemetry: one where a task is created, and one for each attempt.

Only this module imports OpenTelemetry, and only its API: without an SDK every span is a
no-op. ``apps.py`` binds it if TRACES is set. The names of the attributes are those of the
semantic conventions for messaging.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from django_durable_tasks.task_values import LINKS, TRACEPARENT, Run

CHILD_WITHIN = timedelta(seconds=60)
"""A first attempt that starts later is linked to the creation of its task instead of being its
child, so that a trace does not stay open for days.
"""
logger = logging.getLogger("django_durable_tasks.tracing")
_OF_CELERY = "opentelemetry.instrumentation.celery"
_propagator = TraceContextTextMapPropagator()


def _tracer() -> trace.Tracer:
    # Looked up each time, because a project may set its provider after this module is imported.
    return trace.get_tracer("django_durable_tasks")


def _context_of(traceparent: object) -> SpanContext | None:
    """Return the context of a span; None if the text is not valid."""
    if not isinstance(traceparent, str):
        return None
    parent = _propagator.extract({TRACEPARENT: traceparent})
    context = trace.get_current_span(parent).get_span_context()
    return context if context.is_valid else None


def _attributes(name: str, queue: str, operation: str, task_id: str = "") -> dict[str, Any]:
    attributes = {
        "messaging.system": "durable_tasks",
        "messaging.operation.type": operation,
        "messaging.operation.name": operation,
        "messaging.destination.name": queue,
        "durable_tasks.task.name": name,
    }
    return attributes | ({"messaging.message.id": task_id} if task_id else {})


class OpenTelemetryTraces:
    """Provides ``ports.traces``."""

    def created(
        self, name: str, queue: str, task_id: str, number: int, upstreams: Sequence[str]
    ) -> str | None:
        """Create the span of a creation; return its ``traceparent``, or None without a valid one.

        ``number`` tasks are created together. ``upstreams``: the contexts of the creations of tasks
        on which they depend. An error of the SDK is logged, because it must not fail the call.
        """
        try:
            contexts = [context for text in upstreams if (context := _context_of(text)) is not None]
            attributes = _attributes(name, queue, "create", task_id)
            if number > 1:
                attributes["messaging.batch.message_count"] = number
            span = _tracer().start_span(
                f"create {name}",
                kind=SpanKind.PRODUCER,
                attributes=attributes,
                links=[Link(context) for context in contexts],
            )
            carrier: dict[str, str] = {}
            _propagator.inject(carrier, trace.set_span_in_context(span))
            span.end()
            return carrier.get(TRACEPARENT)
        except Exception:
            logger.exception("No span was created for the creation of %s.", name)
            return None

    @contextmanager
    def attempt(self, run: Run) -> Iterator[None]:
        """Make the span of an attempt the current one while the block runs.

        If Celery's instrumentation has created a span for the message, that span is used. An
        exception of the block is recorded by it. An error of the SDK is logged, because it must not
        fail the task, neither before its function is called nor after it has returned.
        """
        active = None
        try:
            span = _attempt_span(run)
            if span is not None:
                active = trace.use_span(span, end_on_exit=True)
                active.__enter__()
        except Exception:
            logger.exception("No span was created for an attempt of %s.", run.name)
            active = None
        if active is None:
            yield
            return
        raised: tuple[Any, Any, Any] = (None, None, None)
        try:
            yield
        except BaseException as error:
            raised = type(error), error, error.__traceback__
            raise
        finally:
            try:
                active.__exit__(*raised)
            except Exception:
                logger.exception("The span of an attempt of %s was not ended.", run.name)


def _attempt_span(run: Run) -> Span | None:
    """Start the span of an attempt; None if the span of Celery's instrumentation is used."""
    creation, links = _context_of(run.options.get(TRACEPARENT)), run.options.get(LINKS)
    texts = links if isinstance(links, list) else []
    upstreams = [upstream for text in texts if (upstream := _context_of(text)) is not None]
    attributes = _attributes(run.name, run.queue, "process", str(run.task_id)) | {
        "durable_tasks.attempt": run.attempt,
        "durable_tasks.tenant": run.tenant_id,
    }
    current = trace.get_current_span()
    scope = getattr(current, "instrumentation_scope", None)
    is_theirs = getattr(scope, "name", "") == _OF_CELERY
    if is_theirs and getattr(current, "kind", None) is SpanKind.CONSUMER:
        current.set_attributes(attributes)
        for context in [*([creation] if creation else []), *upstreams]:
            current.add_link(context)
        return None
    parent, linked = Context(), upstreams  # without a parent, whatever span is current
    created = datetime.fromtimestamp((run.task_id.int >> 80) / 1_000, UTC)
    if creation is not None and run.attempt == 1 and run.started_at - created <= CHILD_WITHIN:
        parent = trace.set_span_in_context(trace.NonRecordingSpan(creation))
    elif creation is not None:
        linked = [creation, *upstreams]
    return _tracer().start_span(
        f"process {run.name}",
        context=parent,
        kind=SpanKind.CONSUMER,
        attributes=attributes,
        links=[Link(context) for context in linked],
    )
