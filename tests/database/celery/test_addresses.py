"""An exchange and a routing key select the queue that is bound to them. Without such a queue, beat
entries keep the default queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import current_app
from celery.app.amqp import AMQP
from django.conf import settings as django_settings
from kombu import Exchange, Queue, binding

from django_durable_tasks.celery import prepared_messages
from django_durable_tasks.celery.prepared_messages import queue_at
from django_durable_tasks.checks import check_schedules
from django_durable_tasks.exceptions import InvalidOption, UnknownQueue
from tests.celery_settings import celery_configured, forget_routes
from tests.project.tasks import add

pytestmark = pytest.mark.django_db
DEFAULT: str = django_settings.CELERY_TASK_DEFAULT_QUEUE
BY_BEAT = {"headers": {"periodic_task_name": "nightly"}}


@pytest.fixture(autouse=True)
def _queues() -> Iterator[None]:
    """Declare Celery queues on exchanges of each type beside the default queue."""
    app = current_app._get_current_object()
    before, news = app.amqp, Exchange("news", type="fanout")
    queues = [
        Queue("mail", Exchange("post", type="topic"), routing_key="mail.#"),
        Queue(DEFAULT),
        Queue("cards", Exchange("pay"), routing_key="card"),
        Queue("alarms", Exchange("alarm", type="fanout")),
        Queue("bound", bindings=[binding(Exchange("post", type="topic"), "parcel.*")]),
        Queue("one", news),
        Queue("two", news),
    ]
    with celery_configured(task_queues=queues):
        app.amqp = AMQP(app)
        prepared_messages.forget()
        yield
    app.amqp = before
    forget_routes()
    prepared_messages.forget()


def _called(**options: Any) -> str:
    return str(add.apply_async((1, 2), **options).task.queue)


@pytest.mark.parametrize(
    ("options", "queue"),
    [
        ({"exchange": "post", "routing_key": "mail.#"}, "mail"),
        ({"exchange": Exchange("post"), "routing_key": "mail.#"}, "mail"),
        ({"exchange": "post", "routing_key": "mail.new.large"}, "mail"),
        ({"exchange": "post", "routing_key": "parcel.new"}, "bound"),
        ({"exchange": "pay", "routing_key": "card"}, "cards"),
        ({"exchange": "alarm", "routing_key": "anything"}, "alarms"),
        ({"exchange": "alarm"}, "alarms"),
        ({"exchange": "", "routing_key": "mail"}, "mail"),
        ({"exchange": Exchange(""), "routing_key": "mail"}, "mail"),
        ({"exchange": "post", "routing_key": "mail.#", "queue": DEFAULT}, "mail"),
        ({"queue": "mail"}, "mail"),
        ({}, DEFAULT),
    ],
)
def test_an_address_selects_the_queue_that_is_bound_to_it(
    options: dict[str, Any], queue: str
) -> None:
    assert _called(**options) == queue
    assert _called(**options, **BY_BEAT) == queue


@pytest.mark.parametrize(
    "options",
    [
        {"exchange": "ex", "routing_key": "rk"},
        {"exchange": "ex"},
        {"routing_key": "rk"},
        {"exchange": "pay", "routing_key": "cards"},
        {"exchange": "post", "routing_key": "parcel.new.large"},
    ],
)
def test_an_address_without_a_queue_is_refused_except_for_beat(
    options: dict[str, Any], caplog: Any
) -> None:
    with pytest.raises(
        InvalidOption, match=r"no queue of task_queues is bound to them; name the queue"
    ):
        _called(**options)
    assert _called(**options, **BY_BEAT) == DEFAULT
    assert _called(**options, queue="mail", **BY_BEAT) == "mail"
    assert "Periodic task 'nightly' of beat" in caplog.text


def test_an_address_of_several_queues_is_refused() -> None:
    with pytest.raises(
        InvalidOption, match=r"the queues one, two are bound to them; name the queue"
    ):
        _called(exchange="news", routing_key="x")
    assert _called(exchange="news", routing_key="x", **BY_BEAT) == DEFAULT


@pytest.mark.parametrize(
    "address",
    [
        ("post", "mail.new"),
        ("post", "parcel.new"),
        ("pay", "card"),
        ("alarm", "x"),
        ("", "mail"),
        ("pay", "cards"),
        ("news", "x"),
        ("gone", "x"),
    ],
)
def test_a_call_and_a_route_of_the_same_address_use_the_same_queue(
    address: tuple[str, str],
) -> None:
    exchange, key = address
    with celery_configured(task_routes={add.name: {"exchange": exchange, "routing_key": key}}):
        try:
            routed = prepared_messages.queue_of(add.name, None)
        except UnknownQueue:
            routed = None
    assert queue_at(exchange, key) == routed


def test_a_check_names_an_entry_of_beat_schedule_that_would_fail() -> None:
    entry = {"task": add.name, "schedule": 60, "options": {"exchange": "ex"}}
    good = {**entry, "options": {"exchange": "post", "routing_key": "mail.#"}}
    with celery_configured(
        beat_schedule={"bad": entry, "good": good, "plain": {**entry, "task": "shop.plain"}}
    ):
        [found] = check_schedules()
    assert found.id == "durable_tasks.W015"
    assert "'bad'" in found.msg
