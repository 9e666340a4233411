"""Sentry's own integration of Celery, in a project that only calls ``sentry_sdk.init``."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest_django.plugin import DjangoDbBlocker

from tests.http_servers import Listener, answer, answering, listening
from tests.processes.newcomer import Newcomer, newcomer_in
from tests.waiting import until

pytestmark = pytest.mark.timeout(300)
_TASKS = """
from django_durable_tasks import durable_task


@durable_task(max_attempts=2, backoff="FIXED", backoff_base=1)
def fail(address):
    raise ValueError(f"no address: {address}")


@durable_task
def add(left, right):
    return left + right
"""
_REQUEST = """
import sentry_sdk
from accounts.tasks import add, fail
with sentry_sdk.start_transaction(name="checkout") as transaction:
    rows = [fail.delay("anna"), add.schedule(1, 2), *add.schedule_many([(3, 4), (5, 6)])]
    print("trace", transaction.trace_id)
"""


_EXPECTED = ["accounts.tasks.add"] * 3 + ["accounts.tasks.fail"] * 2 + ["checkout"]


@pytest.fixture
def sentry() -> Iterator[Listener]:
    """A server that accepts envelopes."""
    with listening(answering(answer(body=b"{}"))) as server:
        yield server


@pytest.fixture
def project(
    tmp_path: Path, django_db_blocker: DjangoDbBlocker, sentry: Listener
) -> Iterator[Newcomer]:
    """A migrated project that uses Sentry."""
    with newcomer_in(tmp_path, django_db_blocker) as found:
        found.write("accounts/tasks.py", _TASKS)
        found.settings(
            "import sentry_sdk\n"
            f'sentry_sdk.init(dsn="http://key@127.0.0.1:{sentry.port}/1", traces_sample_rate=1.0)'
        )
        code, output = found.manage("migrate", "--verbosity", "0")
        assert code == 0, output
        yield found


def _items(server: Listener, kind: str) -> list[dict[str, Any]]:
    """Return the received events of this type."""
    found = list[dict[str, Any]]()
    for number in range(len(server.requests)):
        body = server.body(number)
        lines = (gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body).splitlines()
        for header, payload in zip(lines[1::2], lines[2::2], strict=False):
            if json.loads(header)["type"] == kind:
                found.append(json.loads(payload))
    return found


def _transactions(server: Listener, trace: str) -> list[str]:
    return sorted(
        item["transaction"]
        for item in _items(server, "transaction")
        if item["contexts"]["trace"]["trace_id"] == trace
    )


def _trace(output: str) -> str:
    found = re.search("^trace (.+)$", output, re.MULTILINE)
    assert found is not None, output
    return found[1]


def test_the_trace_of_a_request_goes_on_in_the_worker_with_one_event_for_the_failure(
    project: Newcomer, sentry: Listener
) -> None:
    program = project.ready(project.dev())
    trace = _trace(project.shell(_REQUEST))
    until(
        lambda: len(_transactions(sentry, trace)) >= len(_EXPECTED),
        within=120,
        message="all transactions",
    )
    program.terminate()
    assert _transactions(sentry, trace) == _EXPECTED
    (event,) = _items(sentry, "event")
    (error,) = event["exception"]["values"]
    assert (error["type"], error["value"]) == ("ValueError", "no address: anna")
    assert event["contexts"]["trace"]["trace_id"] == trace
    assert event["extra"]["celery-job"]["kwargs"] == "[Filtered]"


def test_eager_tasks_belong_to_the_trace_of_the_request(
    project: Newcomer, sentry: Listener
) -> None:
    project.settings("CELERY_TASK_ALWAYS_EAGER = True")
    trace = _trace(project.shell(_REQUEST))
    assert _transactions(sentry, trace).count("accounts.tasks.add") == 3
