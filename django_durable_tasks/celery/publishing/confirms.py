"""Messages are built from a template and sent over a doorbell, in one round trip a batch.

A message goes to the queue itself, as Celery does for direct exchanges: by the default exchange
with the queue's name as its key. An exchange of its own would copy it into every queue with the
same binding, and of two queues that Celery was given without exchange and key, both have the same
one.
"""

from __future__ import annotations

import functools
import os
import platform
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from amqp.exceptions import FrameSyntaxError
from celery import signals
from kombu.utils.json import dumps

from django_durable_tasks import conf
from django_durable_tasks.celery.publishing.broker_connection import Doorbell, QueueRejected
from django_durable_tasks.celery.publishing.message_id import celery_id_of, headers_of
from django_durable_tasks.exceptions import UnknownQueue
from django_durable_tasks.ports import TaskMessage

_BODY = '[[], {}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'
_HIDDEN = "<durable>"
_DIRECTLY = ""
"""The default exchange: each queue is bound to it by its name, and by nothing else."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """A message that was not accepted though the broker answers: it takes none of this queue."""

    message: TaskMessage
    error: BaseException


@dataclass(frozen=True, slots=True)
class _Prepared:
    message: TaskMessage
    prepared: Any
    queue: str


@functools.lru_cache(maxsize=1)
def _origin(pid: int) -> str:
    return f"{pid}@{platform.node()}"


def _headers(message: TaskMessage) -> dict[str, Any]:
    """The headers of Celery's message protocol 2, plus ours."""
    celery_id = celery_id_of(message)
    return {
        "lang": "py",
        "task": message.name,
        "id": celery_id,
        "shadow": None,
        "eta": None,
        "expires": None,
        "group": None,
        "group_index": None,
        "retries": 0,
        "timelimit": [message.timeout, message.soft_timeout],
        "root_id": celery_id,
        "parent_id": None,
        "argsrepr": _HIDDEN,
        "kwargsrepr": _HIDDEN,
        "origin": _origin(os.getpid()),
        "ignore_result": None,
        "replaced_task_nesting": 0,
        "stamped_headers": None,
        "stamps": {},
        **headers_of(message),
    }


def _prepare_message(bell: Doorbell, message: TaskMessage, queue: Any) -> Any:
    # Redis serves its lowest number first, RabbitMQ its highest.
    priority = 9 - message.priority if bell.driver == "redis" else message.priority
    headers = _headers(message)
    properties = {"correlation_id": headers["id"], "reply_to": "", "delivery_mode": 2}
    if signals.before_task_publish.receivers:
        signals.before_task_publish.send(
            sender=message.name,
            body=_BODY,
            exchange=_DIRECTLY,
            routing_key=queue.name,
            headers=headers,
            properties=properties,
            declare=[queue],
            retry_policy=None,
        )
    return bell.channel.prepare_message(
        _BODY, priority, "application/json", "utf-8", headers, properties
    )


def send(
    bell: Doorbell, messages: Sequence[TaskMessage], *, confirm: bool
) -> tuple[list[Rejection], Sequence[TaskMessage]]:
    """Send these rings; return which were rejected, and which are left because the broker closed
    the connection.

    ``confirm``: on RabbitMQ wait until each message is confirmed. Raises an error of the connection
    if the broker does not answer; what was sent until then may be sent once more.
    """
    rejections, prepared = _prepare(bell, messages)
    if bell.spoilt:
        rejected = {found.message for found in rejections}
        return rejections, [message for message in messages if message not in rejected]
    if bell.driver == "redis":
        found = _send_by_pipeline(bell, prepared)
    elif bell.driver == "amqp" and confirm:
        found = _send_with_confirms(bell, prepared)
    elif bell.driver == "amqp":
        # Without a confirm: the task is republished if it does not start.
        for one in prepared:
            _put(bell.channel, one, mandatory=False)
        found = []
    else:
        found = _send_one_by_one(bell, prepared)
    return rejections + found, ()


def _prepare(
    bell: Doorbell, messages: Sequence[TaskMessage]
) -> tuple[list[Rejection], list[_Prepared]]:
    """Declare the queues and build the messages before any is sent."""
    rejections, prepared = [], []
    refused: dict[str, Exception] = {}
    for message in messages:
        if message.queue not in refused:
            try:
                queue = bell.queue(message.queue)
            except (UnknownQueue, QueueRejected) as error:
                refused[message.queue] = error
                if bell.spoilt:
                    rejections += [
                        Rejection(one, error) for one in messages if one.queue == message.queue
                    ]
                    break
        if message.queue in refused:
            rejections.append(Rejection(message, refused[message.queue]))
            continue
        prepared.append(_Prepared(message, _prepare_message(bell, message, queue), queue.name))
    return rejections, prepared


def _put(channel: Any, one: _Prepared, *, mandatory: bool) -> None:
    try:
        channel._basic_publish(
            one.prepared, exchange=_DIRECTLY, routing_key=one.queue, mandatory=mandatory
        )
    except (
        FrameSyntaxError
    ) as error:  # among the errors of a lost connection, but it is the message
        raise ValueError(
            f"The message of task {one.message.task_id} cannot be encoded: {error}"
        ) from error


def _send_one_by_one(bell: Doorbell, prepared: Sequence[_Prepared]) -> list[Rejection]:
    rejections: dict[str, QueueRejected] = {}
    for one in prepared:
        if one.queue in rejections:
            continue
        try:
            bell.channel.basic_publish(one.prepared, exchange=_DIRECTLY, routing_key=one.queue)
        except bell.failures as error:
            if bell.is_lost(error):
                raise
            rejections[one.queue] = QueueRejected(f"{type(error).__name__}: {error}")
    return [
        Rejection(one.message, rejections[one.queue]) for one in prepared if one.queue in rejections
    ]


def _send_by_pipeline(bell: Doorbell, prepared: Sequence[_Prepared]) -> list[Rejection]:
    """What Kombu's Redis channel does for one message, for all of them in one round trip, one
    command a list.
    """
    channel, lists = bell.channel, dict[Any, list[_Prepared]]()
    for one in prepared:
        channel._inplace_augment_message(one.prepared, _DIRECTLY, one.queue)
        key = channel._q_for_pri(
            one.queue, channel._get_message_priority(one.prepared, reverse=False)
        )
        lists.setdefault(key, []).append(one)
    pushes = [(key, *(dumps(one.prepared) for one in some)) for key, some in lists.items()]
    if len(pushes) == 1:
        try:
            bell.redis.lpush(*pushes[0])
        except bell.failures as error:
            return _rejected_by_redis(bell, lists.values(), [error])
        return []
    with bell.redis.pipeline(transaction=False) as pipe:
        for push in pushes:
            pipe.lpush(*push)
        return _rejected_by_redis(bell, lists.values(), pipe.execute(raise_on_error=False))


def _rejected_by_redis(
    bell: Doorbell, lists: Iterable[Sequence[_Prepared]], answers: Sequence[Any]
) -> list[Rejection]:
    rejections = []
    for some, answer in zip(lists, answers, strict=True):
        if isinstance(answer, Exception):
            if bell.is_lost(answer):
                raise answer
            rejections += [Rejection(one.message, answer) for one in some]
    return rejections


def _send_with_confirms(bell: Doorbell, prepared: Sequence[_Prepared]) -> list[Rejection]:
    """Publish all, then wait once until the broker has confirmed or refused each of them."""
    receipts = _Receipts(bell, prepared)
    channel = bell.batch_channel
    receipts.listen(channel)
    try:
        for one in prepared:
            _put(channel, one, mandatory=True)
        deadline = time.monotonic() + conf.settings().PUBLISH_TIMEOUT
        while receipts.missing:
            # drain_events() with 0 would wait without an end.
            channel.connection.drain_events(timeout=max(deadline - time.monotonic(), 0.001))
    except bell.failures as error:
        bell.drop_batch_channel()
        if bell.is_lost(error):
            raise
        receipts.reject_missing(error)
    finally:
        receipts.hear_no_more(channel)
    return receipts.rejections()


class _Receipts:
    """What RabbitMQ says to each message of a batch: confirmed, refused (a full queue), or no such
    queue.
    """

    def __init__(self, bell: Doorbell, prepared: Sequence[_Prepared]) -> None:
        bell.batch_channel  # noqa: B018 - opened first: its tags begin at 1
        self._bell = bell
        self.missing = dict(zip(bell.next_tags(len(prepared)), prepared, strict=True))
        self._errors: dict[str, Exception] = {}
        self._rejected: list[_Prepared] = []
        self._of = {celery_id_of(one.message): one for one in prepared}

    def listen(self, channel: Any) -> None:
        for event, act in self._acts():
            channel.events[event].add(act)

    def hear_no_more(self, channel: Any) -> None:
        for event, act in self._acts():
            channel.events[event].discard(act)

    def _acts(self) -> tuple[tuple[str, Any], ...]:
        return (
            ("basic_ack", self._acknowledged),
            ("basic_nack", self._refused),
            ("basic_return", self._returned),
        )

    def _acknowledged(self, tag: int, multiple: bool) -> None:
        self._settled(tag, multiple)

    def _refused(self, tag: int, multiple: bool) -> None:
        for one in self._settled(tag, multiple):
            self._reject(
                one,
                QueueRejected(
                    "The queue refuses messages (basic.nack): it is full or unavailable."
                ),
            )

    def _returned(self, error: Exception, exchange: str, routing_key: str, message: Any) -> None:
        one = self._of.get(message.properties.get("correlation_id"))
        if one is not None:
            self._bell.declared.pop(
                one.message.queue, None
            )  # it was deleted: the next message declares it again
            self._reject(one, QueueRejected("The queue does not exist (basic.return)."))

    def _settled(self, tag: int, multiple: bool) -> list[_Prepared]:
        tags = [known for known in self.missing if known <= tag] if multiple else [tag]
        return [one for known in tags if (one := self.missing.pop(known, None)) is not None]

    def reject_missing(self, error: BaseException) -> None:
        text = (
            "not confirmed within PUBLISH_TIMEOUT"
            if isinstance(error, TimeoutError)
            else str(error)
        )
        for one in self.missing.values():
            self._reject(one, QueueRejected(f"{type(error).__name__}: {text}"))
        self.missing = {}

    def _reject(self, one: _Prepared, error: Exception) -> None:
        self._errors.setdefault(one.queue, error)
        self._rejected.append(one)

    def rejections(self) -> list[Rejection]:
        return [Rejection(one.message, self._errors[one.queue]) for one in self._rejected]
