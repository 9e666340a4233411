"""The SDK of OpenTelemetry, with and without its instrumentation of Celery."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest_django.plugin import DjangoDbBlocker

from tests.processes.newcomer import Newcomer, newcomer_in
from tests.waiting import until

pytestmark = pytest.mark.timeout(300)
_SETTINGS = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

INSTALLED_APPS.append("django_durable_tasks.contrib.metrics")
DURABLE_TASKS = {"TRACES": True}
_out = (BASE_DIR / "spans").open("a")
_exporter = ConsoleSpanExporter(out=_out, formatter=lambda span: span.to_json(indent=None) + "\\n")
trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(_exporter))
"""
_INSTRUMENTED = """
from opentelemetry.instrumentation.celery import CeleryInstrumentor

CeleryInstrumentor().instrument()
"""
_REQUEST = """
from opentelemetry import trace
from accounts.tasks import add
with trace.get_tracer("shop").start_as_current_span("checkout") as span:
    add.delay(1, 2)
    print("trace", format(span.get_span_context().trace_id, "#034x"))
"""


@pytest.fixture
def project(tmp_path: Path, django_db_blocker: DjangoDbBlocker) -> Iterator[Newcomer]:
    """A project that writes its spans to a file; not migrated."""
    with newcomer_in(tmp_path, django_db_blocker) as found:
        found.settings(_SETTINGS)
        yield found


def _spans(project: Newcomer) -> list[dict[str, Any]]:
    lines = (project.folder / "spans").read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


@pytest.mark.parametrize("is_instrumented", [False, True])
def test_the_attempt_of_a_task_belongs_to_the_trace_of_the_request_or_is_linked(
    project: Newcomer, is_instrumented: bool
) -> None:
    name = "run/accounts.tasks.add" if is_instrumented else "process accounts.tasks.add"
    if is_instrumented:
        project.settings(_INSTRUMENTED)
    code, output = project.manage("migrate", "--verbosity", "0")
    assert code == 0, output
    project.ready(project.dev())
    found = re.search("^trace (.+)$", project.shell(_REQUEST), re.MULTILINE)
    assert found is not None
    until(
        lambda: [span for span in _spans(project) if span["name"] == name],
        within=60,
        message=f"a span {name!r}",
    )
    spans = _spans(project)
    (attempt,) = [span for span in spans if span["kind"] == "SpanKind.CONSUMER"]
    (created,) = [span for span in spans if span["name"] == "create accounts.tasks.add"]
    assert (attempt["name"], attempt["attributes"]["durable_tasks.attempt"]) == (name, 1)
    assert created["context"]["trace_id"] == found[1]
    traces = {
        attempt["context"]["trace_id"],
        *(one["context"]["trace_id"] for one in attempt["links"]),
    }
    assert found[1] in traces
    if not is_instrumented:
        assert attempt["context"]["trace_id"] == found[1]
        assert attempt["parent_id"] == created["context"]["span_id"]
