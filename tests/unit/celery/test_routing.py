"""Celery's routes select one queue, or are refused with a remedy. Messages are counted if workers read
from the broker to which they are published, by any user.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, current_app
from kombu import Exchange, Queue, binding
from kombu.common import Broadcast

from django_durable_tasks.celery.prepared_messages import queue_of
from django_durable_tasks.celery.publisher import is_same_broker
from django_durable_tasks.exceptions import UnknownQueue

NAME = "shop.tasks.cut"
MEDIA = Exchange("media", type="topic")
QUEUES = [
    Queue("mail"),
    Queue("video", MEDIA, routing_key="video.#"),
    Queue("image", MEDIA, routing_key="image.*.small"),
    Queue("cards", Exchange("pay"), routing_key="card"),
    Queue("short-named", alias="alias"),
    Queue("bound", bindings=[binding(MEDIA, "sound.#")]),
]


@pytest.fixture
def app() -> Iterator[Celery]:
    """Give an application that is current in this thread."""
    before = current_app._get_current_object()
    made = Celery("routing", set_as_current=False, broker="memory://")
    made.conf.update(
        task_queues=QUEUES, task_default_queue="mail", task_create_missing_queues=False
    )
    made.set_current()
    yield made
    before.set_current()


@pytest.mark.parametrize(
    ("route", "queue"),
    [
        ("cards", "cards"),
        ({"queue": "video", "routing_key": "video.cut"}, "video"),
        ({"queue": QUEUES[1]}, "video"),
        ({"exchange": "media", "routing_key": "video.cut.large"}, "video"),
        ({"exchange": "media", "routing_key": "video"}, "video"),
        ({"exchange": MEDIA, "routing_key": "image.cut.small"}, "image"),
        ({"exchange": "media", "routing_key": "sound.mix"}, "bound"),
        ({"exchange": "pay", "routing_key": "card"}, "cards"),
        ({"exchange": "", "routing_key": "cards"}, "cards"),
        ({"routing_key": "anything"}, "mail"),
        ({"priority": 3}, "mail"),
        ({"queue": "alias"}, "short-named"),
    ],
)
def test_a_route_selects_one_queue(app: Celery, route: Any, queue: str) -> None:
    app.conf.task_routes = {NAME: route}
    assert queue_of(NAME, None) == queue
    assert queue_of(NAME, "cards") == "cards"
    assert queue_of("shop.tasks.other", None) == "mail"


def test_an_explicit_queue_overrides_the_route_and_may_be_an_alias(app: Celery) -> None:
    assert (queue_of(NAME, "alias"), queue_of(NAME, "video")) == ("short-named", "video")
    with pytest.raises(UnknownQueue, match="'nowhere' is not in CELERY_TASK_QUEUES") as refused:
        queue_of(NAME, "nowhere")
    assert refused.value.option == "queue"


@pytest.mark.parametrize(
    ("route", "words"),
    [
        (
            {"exchange": "media", "routing_key": "image.cut.large"},
            "no queue of CELERY_TASK_QUEUES is bound",
        ),
        (
            {"exchange": "media", "routing_key": "images.small"},
            "no queue of CELERY_TASK_QUEUES is bound",
        ),
        ({"exchange": "gone", "routing_key": "x"}, "no queue of CELERY_TASK_QUEUES is bound"),
        ({"exchange": "news", "routing_key": "x"}, "the queues one, two are bound"),
        ({"exchange": "", "routing_key": "nowhere"}, "'nowhere' is not in CELERY_TASK_QUEUES"),
        ({"queue": "everybody"}, "is a Broadcast"),
        ({"exchange": "everybody", "routing_key": "x"}, "is a Broadcast"),
    ],
)
def test_a_route_of_no_queue_or_of_several_is_refused(app: Celery, route: Any, words: str) -> None:
    news = Exchange("news", type="fanout")
    app.conf.task_queues = [*QUEUES, Queue("one", news), Queue("two", news), Broadcast("everybody")]
    app.conf.task_routes = {NAME: route}
    with pytest.raises(UnknownQueue, match=words):
        queue_of(NAME, None)


def test_a_router_receives_the_arguments_of_each_call(app: Celery) -> None:
    def by_region(
        name: str, args: Any, kwargs: Any, options: Any, task: Any = None, **_: Any
    ) -> Any:
        return {"queue": "cards"} if "eu" in args or kwargs.get("region") == "eu" else None

    app.conf.task_routes = (by_region,)
    assert queue_of(NAME, None, ("eu",), {}) == "cards"
    assert queue_of(NAME, None, (), {"region": "eu"}) == "cards"
    assert queue_of(NAME, None, ("us",), {}) == "mail"
    assert queue_of(NAME, "video", ("eu",), {}) == "video"


ONE = "amqp://writer:one@broker:5672/shop"


@pytest.mark.parametrize(
    ("read", "is_same"),
    [
        ("amqp://reader:two@broker/shop", True),
        ("amqp://broker:5672/shop?heartbeat=10", True),
        (ONE, True),
        ("amqp://writer:one@broker:5673/shop", False),
        ("amqp://writer:one@broker:5672/other", False),
        ("amqp://writer:one@other:5672/shop", False),
        ("redis://broker:5672/shop", False),
        (f"{ONE};amqp://second/shop", False),
    ],
)
def test_only_the_address_of_the_broker_counts(read: str, is_same: bool) -> None:
    assert is_same_broker(read, ONE) is is_same


def test_lists_of_brokers_are_compared_in_any_order() -> None:
    brokers = ["redis://a:6379/1", "redis://:secret@b/1"]
    assert is_same_broker("redis://b:6379/1;redis://:secret@a/1", brokers)
    assert not is_same_broker(brokers[:1], brokers)
