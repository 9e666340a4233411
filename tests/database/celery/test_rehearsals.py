"""``RehearsedTask``: a plain Celery task that warns of the calls that a durable task would refuse."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from celery import Celery, chain, chord, current_app, group, shared_task
from django.conf import settings as django_settings
from django.db import transaction

from django_durable_tasks.celery.calls import RehearsedTask
from django_durable_tasks.models import Task
from tests.celery_settings import celery_configured, result_backend
from tests.messages import take_messages

pytestmark = pytest.mark.django_db(transaction=True)
QUEUE: str = django_settings.CELERY_TASK_DEFAULT_QUEUE


@shared_task(base=RehearsedTask, bind=True, autoretry_for=(OSError,))
def notify(self: Any, order: Any, note: str = "") -> None:
    """Be rehearsed."""


@shared_task(base=RehearsedTask)
def archive(order: UUID) -> None:
    """Accept UUIDs by its annotation."""


@shared_task
def plain(*_: Any) -> None:
    """Not be rehearsed."""


@pytest.fixture(autouse=True)
def _empty_queue() -> None:
    take_messages(QUEUE)


def _calls(call: Callable[[], Any]) -> list[str]:
    """Return the warnings of a call; those of one text and one line are shown once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        call()
    assert {warning.filename for warning in caught} <= {__file__}
    assert not Task.objects.exists()
    return [str(warning.message) for warning in caught]


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "an argument": (lambda: notify.delay(uuid4()), "argument 'order' is a UUID"),
    "a large argument": (lambda: notify.delay("x" * 100_000), "PayloadTooLarge"),
    "an argument of a signature": (lambda: notify.s(uuid4()).delay(), "Pass str(value)"),
    "a call by name": (lambda: current_app.send_task(notify.name, [uuid4()]), "Pass str(value)"),
    "an option": (lambda: notify.apply_async((1,), countdwn=5), "Did you mean 'countdown'?"),
    "an id": (lambda: notify.apply_async((1,), task_id="import-42"), "key=..."),
    "a callback": (lambda: notify.apply_async((1,), link=plain.si()), "Workflow.from_canvas"),
    "an errback": (lambda: notify.apply_async((1,), link_error=plain.s()), "Workflow.from_canvas"),
    "headers": (lambda: notify.apply_async((1,), headers={"at": {1: 2}}), "headers cannot be kept"),
    "after COMMIT": (
        lambda: transaction.on_commit(lambda: notify.delay(uuid4())),
        "Pass str(value)",
    ),
    "delay_on_commit": (lambda: notify.delay_on_commit(uuid4()), "Pass str(value)"),
    "a group": (lambda: group(notify.si(1), plain.si()).delay(), "a group cannot contain"),
    "a chain": (lambda: chain(notify.si(1), plain.si()).delay(), "a chain cannot contain"),
    "the body of a chord": (
        lambda: chord([plain.si(), plain.si()], notify.si(1)).delay(),
        "a chord cannot contain",
    ),
    "an errback of a plain task": (
        lambda: plain.apply_async(link_error=notify.si(1)),
        "link_error= cannot contain",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_call_that_would_be_refused_warns_and_is_published(case: str) -> None:
    call, reason = REFUSED[case]
    with result_backend("cache+memory://"):
        texts = _calls(call)
    # Celery passes the body of a chord on to the header as an option, which is checked again.
    assert len(texts) == 1 + ("chord" in case)
    assert texts[0].startswith(f"Refused if {notify.name} were a durable task: ")
    assert reason in texts[0]
    assert take_messages(QUEUE)


@pytest.mark.parametrize(
    "call",
    [
        lambda: notify.delay(1),
        lambda: notify.apply_async(args=[1], kwargs={"note": "a"}, countdown=5, queue=QUEUE),
        lambda: notify.apply_async((1,), eta=datetime.now(UTC) + timedelta(1), headers={"a": 1}),
        lambda: archive.delay(UUID(int=1)),
        lambda: chain(plain.si(), notify.si(1)).delay(),
        lambda: group(plain.si(), plain.si()).delay(),
        lambda: plain.apply_async(link=notify.si(1)),
    ],
)
def test_a_call_that_would_be_accepted_warns_of_nothing(call: Callable[[], Any]) -> None:
    assert _calls(call) == []
    assert take_messages(QUEUE)


def test_a_call_that_does_not_fit_fails_as_in_celery() -> None:
    with pytest.warns(UserWarning, match="missing a required argument"), pytest.raises(TypeError):
        notify.delay()


def test_an_eager_call_warns() -> None:
    with celery_configured(task_always_eager=True):
        (text,) = _calls(lambda: notify.delay(uuid4()))
    assert "Pass str(value)" in text


def test_a_retry_of_celery_is_no_call_of_the_project() -> None:
    message = {"id": "import-42", "retries": 1, "called_directly": False, "errbacks": [plain.s()]}
    notify.push_request(args=(uuid4(),), kwargs={}, **message)
    try:
        assert _calls(lambda: notify.retry(countdown=1, throw=False)) == []
    finally:
        notify.pop_request()


def test_it_can_be_the_class_of_all_tasks_of_an_app() -> None:
    path = f"{RehearsedTask.__module__}:RehearsedTask"
    app = Celery("shop", task_cls=path, broker="memory://", set_as_current=False)

    @app.task(name="tests.rehearsals.any", lazy=False)
    def anything(value: Any) -> None: ...

    assert "Pass str(value)" in _calls(lambda: anything.delay(uuid4()))[0]
