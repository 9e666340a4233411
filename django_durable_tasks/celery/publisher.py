"""Rings become messages: built from a template, sent over a doorbell of our own, in one round trip a batch.

Nothing here is needed for correctness: a ring that is lost is rung again by its row's alarm.
"""

from __future__ import annotations

import functools
import logging
import os
import platform
import time
from collections.abc import Sequence
from typing import Any

from celery import current_app, signals
from kombu.exceptions import KombuError
from kombu.utils.json import dumps

from django_durable_tasks import conf
from django_durable_tasks.celery.breaker import Breaker
from django_durable_tasks.celery.doorbell import Doorbell, doorbell
from django_durable_tasks.celery.envelope import celery_id_of, headers_of
from django_durable_tasks.exceptions import BrokerUnavailable, UnknownQueue
from django_durable_tasks.ports import Ring

logger = logging.getLogger("django_durable_tasks.broker")
breaker = Breaker()
os.register_at_fork(after_in_child=breaker.forget_callers)

_BODY = '[[], {}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'
_HIDDEN = "<durable>"


@functools.lru_cache(maxsize=1)
def _origin(pid: int) -> str:
    return f"{pid}@{platform.node()}"


def _headers(ring: Ring) -> dict[str, Any]:
    """The headers of Celery's message protocol 2, plus ours."""
    celery_id = celery_id_of(ring)
    return {
        "lang": "py", "task": ring.name, "id": celery_id, "shadow": None, "eta": None, "expires": None, "group": None,
        "group_index": None, "retries": 0, "timelimit": [ring.timeout, ring.soft_timeout], "root_id": celery_id,
        "parent_id": None, "argsrepr": _HIDDEN, "kwargsrepr": _HIDDEN, "origin": _origin(os.getpid()),
        "ignore_result": None, "replaced_task_nesting": 0, "stamped_headers": None, "stamps": {}, **headers_of(ring),
    }  # fmt: skip


def _message(bell: Doorbell, ring: Ring, queue: Any) -> Any:
    # Redis serves its lowest number first, RabbitMQ its highest.
    priority = 9 - ring.priority if bell.driver == "redis" else ring.priority
    headers = _headers(ring)
    properties = {"correlation_id": headers["id"], "reply_to": "", "delivery_mode": 2}
    if signals.before_task_publish.receivers:
        signals.before_task_publish.send(
            sender=ring.name, body=_BODY, exchange=queue.exchange.name, routing_key=queue.routing_key, headers=headers,
            properties=properties, declare=[queue], retry_policy=None,
        )  # fmt: skip
    return bell.channel.prepare_message(_BODY, priority, "application/json", "utf-8", headers, properties)


def _messages(bell: Doorbell, rings: Sequence[Ring]) -> list[tuple[Any, Any]]:
    """Build all messages before any is sent: a queue that cannot be named fails the batch before it doubles a ring."""
    return [(_message(bell, ring, queue), queue) for ring in rings for queue in (bell.queue(ring.queue),)]


def _send(bell: Doorbell, rings: Sequence[Ring]) -> None:
    if bell.driver == "redis":
        _send_by_pipeline(bell, rings)
    elif bell.driver == "amqp" and len(rings) > 1:
        _send_with_confirms(bell, rings)
    else:
        # Without a confirm: the row's alarm is the receipt.
        publish = getattr(bell.channel, "_basic_publish", bell.channel.basic_publish)
        for message, queue in _messages(bell, rings):
            publish(message, exchange=queue.exchange.name, routing_key=queue.routing_key)


def _send_by_pipeline(bell: Doorbell, rings: Sequence[Ring]) -> None:
    """What Kombu's Redis channel does for one message, for all of them in one round trip."""
    channel, pushes = bell.channel, []
    for message, queue in _messages(bell, rings):
        channel._inplace_augment_message(message, queue.exchange.name, queue.routing_key)
        for name in bell.destinations(queue.name):
            key = channel._q_for_pri(name, channel._get_message_priority(message, reverse=False))
            pushes.append((key, dumps(message)))
    if len(pushes) == 1:
        bell.redis.lpush(*pushes[0])
        return
    with bell.redis.pipeline(transaction=False) as pipe:
        for push in pushes:
            pipe.lpush(*push)
        pipe.execute()


def _send_with_confirms(bell: Doorbell, rings: Sequence[Ring]) -> None:
    """Publish all, then wait once until the broker has confirmed each of them."""
    channel, messages = bell.batch_channel, _messages(bell, rings)
    tags = bell.next_tags(len(rings))

    def confirmed(tag: int, multiple: bool) -> None:
        tags.difference_update([known for known in tags if known <= tag] if multiple else [tag])

    channel.events["basic_ack"].add(confirmed)
    for message, queue in messages:
        channel._basic_publish(message, exchange=queue.exchange.name, routing_key=queue.routing_key)
    deadline = time.monotonic() + conf.settings().PUBLISH_TIMEOUT
    while tags:
        left = deadline - time.monotonic()
        if left <= 0:
            raise BrokerUnavailable(f"{len(tags)} of {len(rings)} messages were not confirmed in time.")
        channel.connection.drain_events(timeout=left)
    channel.events["basic_ack"].discard(confirmed)


@functools.lru_cache(maxsize=4)
def _failures(app: Any) -> tuple[type[BaseException], ...]:
    connection = app.connection_for_write()
    return (*connection.connection_errors, *connection.channel_errors, KombuError, OSError, BrokerUnavailable)


def publish(rings: Sequence[Ring]) -> None:
    """Hand rings to the broker, with one retry; raises BrokerUnavailable within the time limits."""
    if not rings:
        return
    if not breaker.allows():
        raise BrokerUnavailable
    failures = _failures(current_app._get_current_object())
    try:
        try:
            _publish_once(rings)
        except failures:
            _publish_once(rings)
    except failures as error:
        breaker.failed(error)
        raise BrokerUnavailable(f"The broker did not take {len(rings)} messages: {type(error).__name__}.") from error
    breaker.succeeded()


def _publish_once(rings: Sequence[Ring]) -> None:
    with doorbell() as bell:
        _send(bell, rings)


def ring(rings: Sequence[Ring]) -> None:
    """Publish after COMMIT; never raises: what the broker does not take is rung again by its alarm."""
    if current_app.conf.task_always_eager:
        for one in rings:
            _run_here(one)
        return
    try:
        publish(rings)
    except BrokerUnavailable as error:
        logger.debug("Not rung at once: %s", error)
    except Exception:
        if len(rings) == 1:
            logger.exception("The row %s cannot be rung; it stays, and its alarm rings again.", rings[0].task_id)
            return
        for one in rings:  # one that cannot be published must not silence the others
            ring([one])


def _run_here(ring: Ring) -> None:
    task = current_app.tasks[ring.name]
    task.apply(task_id=celery_id_of(ring), headers=headers_of(ring), throw=current_app.conf.task_eager_propagates)


@functools.lru_cache(maxsize=1_000)
def _routed(app: Any, name: str, queue: str | None) -> str:
    if queue is not None:
        if queue not in app.amqp.queues and not app.conf.task_create_missing_queues:
            known = ", ".join(sorted(app.amqp.queues))
            raise UnknownQueue(f"queue={queue!r} is not in CELERY_TASK_QUEUES, which has: {known}.")
        return queue
    route = app.amqp.router.route({}, name)
    found = route.get("queue") or app.conf.task_default_queue
    return str(getattr(found, "name", found))


def queue_of(name: str, queue: str | None) -> str:
    """Return the queue that Celery's routing gives to this task; raises UnknownQueue."""
    return _routed(current_app._get_current_object(), name, queue)
