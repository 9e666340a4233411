"""The calling patterns of paperless-ngx and pretix. Each works as with Celery, or raises the error that
names its replacement. The table is that of ``docs/how-to/move_from_delay_on_commit.md``.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from celery import chord, current_app, group, shared_task
from django.contrib.auth import get_user_model
from django.db import transaction

from django_durable_tasks import Workflow, durable_task
from django_durable_tasks.celery.result import DurableResult
from django_durable_tasks.celery.task import DurableTask
from django_durable_tasks.exceptions import (
    InvalidArguments,
    InvalidOption,
    UnserializableArguments,
    UntranslatableCanvas,
)
from django_durable_tasks.models import Task, WorkflowRun

pytestmark = [
    pytest.mark.django_db,
    # Celery warns at .on_error() of a chord, also of plain tasks.
    pytest.mark.filterwarnings("ignore::celery.exceptions.CPendingDeprecationWarning"),
]


class Source(enum.StrEnum):
    """Where a document comes from."""

    WEB = "web_ui"


@dataclass
class Overrides:
    """What paperless passes as a dataclass."""

    title: str


@durable_task(bind=True, max_retries=3, default_retry_delay=5)
def consume(self: Any, document: Any, note: Any = None) -> str:
    """Take anything."""
    return "done"


@durable_task
def consume_typed(path: Path, overrides: Overrides | None = None) -> None:
    """Take what the annotations say."""


@durable_task
def restore(task_id: str) -> None:
    """Be an errback."""


@durable_task
def errback(request: Any, exc: Any, tb: Any, rule_id: int) -> None:
    """Be an errback as Celery calls it."""


@shared_task
def plain() -> None:
    """Not be durable."""


LATER = datetime.now(UTC) + timedelta(hours=1)


def _one() -> Task:
    row: Task = Task.objects.get(name=consume.name)
    return row


WORKS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "delay": (lambda: consume.delay(1), lambda row: row.args == [1]),
    "delay with keywords": (lambda: consume.delay(document=1), lambda row: not row.args),
    "apply_async(args)": (lambda: consume.apply_async([1]), lambda row: row.args == [1]),
    "apply_async(kwargs)": (
        lambda: consume.apply_async(kwargs={"document": 1}),
        lambda row: row.kwargs == {"document": 1},
    ),
    "countdown": (
        lambda: consume.apply_async((1,), countdown=3600),
        lambda row: row.run_at > datetime.now(UTC) + timedelta(minutes=50),
    ),
    "eta": (lambda: consume.apply_async((1,), eta=LATER), lambda row: row.run_at == LATER),
    "expires": (
        lambda: consume.apply_async((1,), expires=LATER),
        lambda row: row.expires_at == LATER,
    ),
    "priority": (lambda: consume.apply_async((1,), priority=7), lambda row: row.priority == 7),
    "queue": (lambda: consume.apply_async((1,), queue="mail"), lambda row: row.queue == "mail"),
    "headers of an enum": (
        lambda: consume.apply_async((1,), headers={"source": Source.WEB}),
        lambda row: row.options["headers"] == {"source": "web_ui"},
    ),
    "time limits": (
        lambda: consume.apply_async((1,), time_limit=60, soft_time_limit=50),
        lambda row: row.options["timeout"] == 60,
    ),
    "retry_policy, shadow, serializer": (
        lambda: consume.apply_async(
            (1,), retry_policy={"max_retries": 1}, shadow="x", serializer="json", ignore_result=True
        ),
        lambda row: row.args == [1],
    ),
    "signature with set": (
        lambda: consume.s(1).set(headers={"a": 1}, priority=2).apply_async(),
        lambda row: (row.priority, row.options["headers"]) == (2, {"a": 1}),
    ),
    "signature delay": (lambda: consume.s(1).delay(), lambda row: row.args == [1]),
    "signature by name": (
        lambda: current_app.signature(consume.name).delay(1),
        lambda row: row.args == [1],
    ),
    "send_task": (lambda: current_app.send_task(consume.name, [1]), lambda row: row.args == [1]),
    "on_commit": (
        lambda: [transaction.on_commit(lambda: consume.delay(2)), consume.delay(1)],  # type: ignore[func-returns-value]
        lambda row: row.args == [1],
    ),
    "delay_on_commit": (lambda: consume.delay_on_commit(1), lambda row: row.args == [1]),
    "tuple, list, dict, enum of texts": (
        lambda: consume.delay((1, 2), {"a": [Source.WEB]}),
        lambda row: row.args == [[1, 2], {"a": ["web_ui"]}],
    ),
    "AsyncResult": (
        lambda: current_app.AsyncResult(consume.delay(1).id).state,
        lambda row: row.args == [1],
    ),
}


@pytest.mark.parametrize("pattern", WORKS)
def test_a_pattern_works_as_with_celery(pattern: str) -> None:
    call, holds = WORKS[pattern]
    call()
    assert holds(_one())


def test_annotated_arguments_are_accepted() -> None:
    row = consume_typed.schedule(Path("/data/a.pdf"), Overrides("A"))
    assert row.args == ["/data/a.pdf", {"title": "A"}]


@pytest.mark.parametrize(
    ("value", "replacement"),
    [
        (get_user_model()(pk=7), "Pass its primary key, value.pk, and read it in the function."),
        (Path("a"), "Pass str(value), or annotate the parameter with Path."),
        ({1, 2}, "Pass list(value), or annotate the parameter with set."),
        (
            Overrides("A"),
            "Pass dataclasses.asdict(value), or annotate the parameter with its class.",
        ),
        (LATER, "Pass value.isoformat(), or annotate the parameter with datetime."),
        (timedelta(1), "Pass value.total_seconds(), or annotate the parameter with timedelta."),
        ({1: "a"}, "Pass {str(key): item for key, item in value.items()}."),
        (range(3), "Pass list(value)."),
        (b"x", "Pass base64.b64encode(value).decode(), or annotate the parameter with bytes."),
        (bytearray(b"x"), "Pass bytes(value) and annotate the parameter with bytes."),
        (get_user_model().objects.all(), "list(value.values_list('pk', flat=True))."),
    ],
    ids=lambda case: type(case).__name__,
)
def test_an_argument_that_is_no_json_is_refused_with_its_replacement(
    value: Any, replacement: str
) -> None:
    with pytest.raises(UnserializableArguments) as refused:
        consume.delay(value)
    assert str(refused.value).endswith(replacement)
    assert not Task.objects.exists()


class Counted(DurableTask):
    """A base class that overrides the call, as those of pretix do."""

    abstract = True


REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "task_id": (lambda: consume.apply_async((1,), task_id="x"), InvalidOption, "by key=..."),
    "link": (
        lambda: consume.apply_async((1,), link=[restore.si("a")]),
        InvalidOption,
        "Workflow.from_canvas(...)",
    ),
    "link_error": (
        lambda: consume.apply_async((1,), link_error=[restore.s()]),
        InvalidOption,
        "Workflow.from_canvas(...)",
    ),
    "group": (
        lambda: group(consume.s(1), consume.s(2)).delay(),
        InvalidOption,
        "Workflow.from_canvas(...)",
    ),
    "chord": (
        lambda: chord([consume.s(1)], restore.si("a")).on_error(restore.s()).apply_async(),
        InvalidOption,
        "Workflow.from_canvas(...)",
    ),
    "an option of .using() in apply_async": (
        lambda: consume.apply_async((1,), max_attempts=3),
        InvalidOption,
        ".using(max_attempts=...)",
    ),
    "an errback with the exception": (
        lambda: Workflow.from_canvas(consume.s(1).on_error(errback.s(rule_id=7))),
        UntranslatableCanvas,
        "let it take the id only",
    ),
    "a plain task in a canvas": (
        lambda: Workflow.from_canvas(consume.s(1) | plain.si()),
        UntranslatableCanvas,
        "put @durable_task on it",
    ),
    "too many arguments": (
        lambda: cast("Any", consume_typed).delay(1, 2, 3),
        InvalidArguments,
        "too many",
    ),
    "once": (
        lambda: cast("Any", durable_task)(name="t.once", once={"graceful": True})(_function),
        InvalidOption,
        "Write unique=",
    ),
    "throws": (
        lambda: cast("Any", durable_task)(name="t.throws", throws=(OSError,))(_function),
        InvalidOption,
        "give_up_on=",
    ),
    "acks_late": (
        lambda: cast("Any", durable_task)(name="t.acks", acks_late=True)(_function),
        InvalidOption,
        "Leave it out",
    ),
    "@app.task with a durable base": (
        lambda: current_app.task(name="t.app_task", base=Counted, lazy=False)(_function),
        InvalidOption,
        "@durable_task(bind=True, base=Counted)",
    ),
    "a class of Celery as base": (
        lambda: durable_task(name="t.base", base=current_app.Task)(_function),
        InvalidOption,
        "derive it from django_durable_tasks.celery.task.DurableTask",
    ),
}


def _function() -> None:
    """Be decorated."""


@pytest.mark.parametrize("pattern", REFUSED)
def test_a_pattern_is_refused_with_its_replacement(pattern: str) -> None:
    call, error, replacement = REFUSED[pattern]
    with pytest.raises(error, match=re.escape(replacement)):
        call()
    assert not Task.objects.exists()


CANVASES: dict[str, Callable[[], Any]] = {
    "links": lambda: consume.si(1).on_error(restore.s()),
    "a group with headers": lambda: group(
        consume.s(number).set(headers={"source": Source.WEB}) for number in range(3)
    ),
    "a chord with headers and an errback": lambda: chord(
        [consume.s(number).set(headers={"source": Source.WEB}) for number in range(3)],
        consume.si(9).set(headers={"source": Source.WEB}),
    ).on_error(restore.s()),
}


@pytest.mark.parametrize("pattern", CANVASES)
def test_a_canvas_becomes_a_workflow_with_its_headers(pattern: str) -> None:
    run = Workflow.from_canvas(CANVASES[pattern]()).start()
    assert WorkflowRun.objects.get(pk=run.pk).total >= 2
    rows = Task.objects.filter(name=consume.name)
    if pattern != "links":
        assert {(row.options or {})["headers"]["source"] for row in rows} == {"web_ui"}


def test_a_result_is_read_by_the_id_of_the_call() -> None:
    result = consume.delay(1)
    assert isinstance(result, DurableResult)
    assert str(_one().pk) == result.id
