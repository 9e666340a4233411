"""A message is sent to the same queue as by Celery itself, for any configuration of queues."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery
from django.db.models import Count
from kombu import Exchange, Queue

from django_durable_tasks.celery import prepared_messages, publisher
from django_durable_tasks.models import Task
from tests.broker.routes import NAME, application, declare, increase, messages, waiting
from tests.project.bodies import add
from tests.waiting import until


def _bare(a: str, b: str) -> dict[str, Any]:
    return {"task_queues": [Queue(a), Queue(b)], "task_routes": {NAME: a}}


def _same_key(a: str, b: str) -> dict[str, Any]:
    shared = Exchange(f"{a}-direct")
    queues = [Queue(a, shared, routing_key="k"), Queue(b, shared, routing_key="k")]
    return {"task_queues": queues, "task_routes": {NAME: {"queue": a}}}


def _own_exchanges(a: str, b: str) -> dict[str, Any]:
    queues = [Queue(a, Exchange(f"{a}-x"), routing_key="x"), Queue(b, Exchange(f"{a}-y"))]
    return {"task_queues": queues, "task_routes": [{"tests.*": {"queue": a}}]}


def _topic(a: str, b: str) -> dict[str, Any]:
    shared = Exchange(f"{a}-topic", type="topic")
    queues = [Queue(a, shared, routing_key="video.#"), Queue(b, shared, routing_key="image.#")]
    return {"task_queues": queues, "task_routes": {NAME: {"queue": a, "routing_key": "video.cut"}}}


def _router(a: str, b: str) -> dict[str, Any]:
    def route(
        name: str, args: Any, kwargs: Any, options: Any, task: Any = None, **more: Any
    ) -> dict[str, Any] | None:
        return {"queue": a} if name == NAME else None

    return {"task_queues": [Queue(a), Queue(b)], "task_routes": (route,)}


def _priorities(a: str, b: str) -> dict[str, Any]:
    return {
        "task_queues": [Queue(a), Queue(b)],
        "task_routes": {NAME: a},
        "task_queue_max_priority": 10,
    }


def _made_on_demand(a: str, b: str) -> dict[str, Any]:
    return {"task_default_queue": b, "task_routes": {NAME: a}}


def _quorum(a: str, b: str) -> dict[str, Any]:
    kind = {"x-queue-type": "quorum"}
    return {
        "task_queues": [Queue(a, queue_arguments=kind), Queue(b, queue_arguments=kind)],
        "task_routes": {NAME: a},
    }


@pytest.fixture
def names() -> tuple[str, str]:
    """Return names of two queues for this test only: Kombu's connection pools remember what they
    declared.
    """
    run = uuid.uuid4().hex[:8]
    return f"durable-{run}-a", f"durable-{run}-b"


CONFIGURATIONS = [
    _bare,
    _same_key,
    _own_exchanges,
    _topic,
    _router,
    _priorities,
    _made_on_demand,
    _quorum,
]


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=lambda made: made.__name__.strip("_"))
@pytest.mark.parametrize("number", [1, 3], ids=["one message", "a batch"])
def test_a_message_is_sent_to_the_queue_that_celery_uses_and_to_no_other(
    configuration: Callable[[str, str], dict[str, Any]], number: int, names: tuple[str, str]
) -> None:
    a, b = names
    with application(**configuration(a, b)) as app:
        assert [app.amqp.queues[name].name for name in names] == [a, b]
        assert app.amqp.queues[
            app.conf.task_default_queue
        ]  # Celery 5.6 creates it when it publishes
        declare(app)
        by_celery = Celery.send_task.__wrapped__  # the package creates a task for a durable name
        sent = _sent(app, lambda: [by_celery(app, NAME, (1, 2)) for _ in range(number)])
        ours = _sent(
            app, lambda: publisher.publish(messages(prepared_messages.queue_of(NAME, None), number))
        )
        assert ours == sent == {a: number}
        named = _sent(
            app, lambda: publisher.publish(messages(prepared_messages.queue_of(NAME, b), number))
        )
        assert named == {b: number}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=lambda made: made.__name__.strip("_"))
def test_a_call_is_published_to_the_queue_that_celery_uses_and_to_no_other(
    configuration: Callable[[str, str], dict[str, Any]], names: tuple[str, str]
) -> None:
    a, b = names
    with application(**configuration(a, b)) as app:
        assert [app.amqp.queues[name].name for name in names] == [a, b]
        assert app.amqp.queues[
            app.conf.task_default_queue
        ]  # Celery 5.6 creates it when it publishes
        declare(app)
        by_celery = Celery.send_task.__wrapped__
        sent = _sent(app, lambda: by_celery(app, NAME, (1, 2)))
        assert _sent(app, lambda: add.delay(1, 2)) == sent == {a: 1}
        assert _sent(app, lambda: add.apply_async((1, 2))) == sent
        assert _sent(app, lambda: add.apply_async((1, 2), queue=b)) == {b: 1}
        assert dict(Task.objects.values_list("queue").annotate(Count("pk"))) == {a: 2, b: 1}


def _sent(app: Celery, act: Callable[[], object]) -> dict[str, int]:
    before = waiting(app)
    act()
    until(lambda: increase(before, waiting(app)), within=30, message="the messages arrive")
    return increase(before, waiting(app))


def test_an_alias_selects_the_same_queue(names: tuple[str, str]) -> None:
    a, b = names
    with application(task_queues=[Queue(a, alias="short"), Queue(b)]) as app:
        declare(app)
        assert _sent(app, lambda: publisher.publish(messages("short", 2))) == {a: 2}
