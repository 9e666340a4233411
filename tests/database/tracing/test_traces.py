"""A trace continues from the creation of a task to its attempts; retries and dependents are linked."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from celery.exceptions import Retry
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from django_durable_tasks import Workflow, ports
from django_durable_tasks.contrib.metrics.tracing import CHILD_WITHIN, OpenTelemetryTraces
from django_durable_tasks.models import Task
from django_durable_tasks.states import claims
from django_durable_tasks.task_values import LINKS, TRACEPARENT
from tests.delivery import deliver
from tests.project import tasks

pytestmark = pytest.mark.django_db(transaction=True)
_exporter = InMemorySpanExporter()


@pytest.fixture(scope="module")
def provider() -> TracerProvider:
    """Return the provider of this process; OpenTelemetry allows one."""
    found = TracerProvider()
    found.add_span_processor(SimpleSpanProcessor(_exporter))
    trace.set_tracer_provider(found)
    return found


@pytest.fixture
def traces(provider: TracerProvider) -> Iterator[trace.Tracer]:
    """Create spans as with TRACES, and return a tracer of the project."""
    ports.bind_traces(OpenTelemetryTraces())
    _exporter.clear()
    yield provider.get_tracer("shop")
    ports.bind_traces(None)


def _spans(name: str) -> list[ReadableSpan]:
    return [span for span in _exporter.get_finished_spans() if span.name.startswith(name)]


def _only(name: str) -> ReadableSpan:
    (found,) = _spans(name)
    return found


def _id(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return int(context.span_id)


def _linked(span: ReadableSpan) -> set[int]:
    return {link.context.span_id for link in span.links}


def _run(task: Task) -> None:
    """Publish the task and run its message, as a worker does."""
    Task.objects.unguarded().filter(pk=task.pk, status="PENDING").update(due_at=task.created_at)
    claims.claim_these([task.pk], uuid.uuid4(), 15)
    deliver(Task.objects.get(pk=task.pk))


def test_nothing_is_stored_unless_traces_is_set() -> None:
    assert ports.traces is None
    assert tasks.noop.schedule().options is None


def test_an_attempt_is_the_child_of_the_creation_in_the_callers_trace(traces: Any) -> None:
    with traces.start_as_current_span("request") as request:
        task = tasks.add.schedule(1, 2)
    _run(task)
    created, process = _only("create"), _only("process")
    assert created.kind is SpanKind.PRODUCER
    assert process.kind is SpanKind.CONSUMER
    assert created.parent is not None
    assert process.parent is not None
    assert created.parent.span_id == request.get_span_context().span_id
    assert process.parent.span_id == _id(created)
    assert process.attributes is not None
    assert process.attributes["messaging.message.id"] == str(task.pk)
    assert process.attributes["messaging.destination.name"] == task.queue
    assert process.attributes["durable_tasks.attempt"] == 1


def test_each_retry_is_linked_to_the_creation(traces: Any) -> None:
    task = tasks.failing.schedule()
    for _ in range(2):
        with pytest.raises(Retry):
            _run(task)
    created = _only("create")
    first, second = _spans("process")
    assert first.status.status_code is StatusCode.ERROR
    assert first.parent is not None
    assert first.parent.span_id == _id(created)
    assert second.parent is None
    assert _linked(second) == {_id(created)}


def test_an_attempt_long_after_the_creation_is_linked(traces: Any) -> None:
    task = tasks.add.schedule(1, 2)
    old = uuid.UUID(int=task.pk.int - (int(2 * CHILD_WITHIN.total_seconds() * 1_000) << 80))
    Task.objects.unguarded().filter(pk=task.pk).update(id=old)
    _run(Task.objects.get(pk=old))
    process = _only("process")
    assert process.parent is None
    assert _linked(process) == {_id(_only("create"))}


def test_a_dependent_is_linked_to_its_upstreams(traces: Any) -> None:
    upstreams = [tasks.noop.schedule(), tasks.add.schedule(1, 2)]
    dependent = tasks.noop.using(depends_on=upstreams).schedule()
    creations = _spans("create")
    assert _linked(creations[2]) == {_id(creations[0]), _id(creations[1])}
    assert dependent.options is not None
    assert len(dependent.options[LINKS]) == 2


def test_tasks_of_one_call_share_one_creation(traces: Any) -> None:
    tasks.noop.schedule_many([(), (), ()])
    created = _only("create")
    assert created.attributes is not None
    assert created.attributes["messaging.batch.message_count"] == 3
    assert len({row.options[TRACEPARENT] for row in Task.objects.all() if row.options}) == 1


def test_the_tasks_of_a_workflow_share_one_creation(traces: Any) -> None:
    workflow = Workflow("nightly")
    first = workflow.add(tasks.noop)
    workflow.add(tasks.noop, after=[first])
    workflow.start()
    assert _only("create").name == "create nightly"
    contexts = [row.options[TRACEPARENT] for row in Task.objects.all() if row.options]
    assert len(contexts) == 2
    assert len(set(contexts)) == 1


def test_a_span_of_celerys_instrumentation_is_used_instead_of_a_second_one(
    traces: Any, provider: TracerProvider
) -> None:
    task = tasks.add.schedule(1, 2)
    theirs = provider.get_tracer("opentelemetry.instrumentation.celery")
    with theirs.start_as_current_span("run/add", kind=SpanKind.CONSUMER):
        _run(task)
    assert _spans("process") == []
    span = _only("run/add")
    assert span.attributes is not None
    assert span.attributes["durable_tasks.attempt"] == 1
    assert _linked(span) == {_id(_only("create"))}


@pytest.mark.parametrize("stored", ["", "x", 7, None, ["00-1-2-3"]])
def test_a_damaged_context_does_not_prevent_the_run(traces: Any, stored: Any) -> None:
    task = tasks.add.schedule(1, 2)
    options = {TRACEPARENT: stored, LINKS: stored}
    Task.objects.unguarded().filter(pk=task.pk).update(options=options)
    _run(task)
    assert Task.objects.get(pk=task.pk).status == "SUCCESS"
    assert _only("process").parent is None


class _Broken(trace.NoOpTracer):
    def start_span(self, *args: Any, **options: Any) -> Any:
        raise RuntimeError("the exporter is broken")


def test_a_broken_sdk_fails_neither_the_call_nor_the_task(
    traces: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(trace, "get_tracer", lambda *_: _Broken())
    task = tasks.add.schedule(1, 2)
    _run(task)
    assert Task.objects.get(pk=task.pk).status == "SUCCESS"
    assert "No span was created" in caplog.text
