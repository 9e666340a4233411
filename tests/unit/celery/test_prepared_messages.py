"""Messages for Redis are made from templates and equal those that Kombu's channel encodes."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery import signals
from kombu import Connection
from kombu.utils.json import dumps

from django_durable_tasks.celery import prepared_messages
from django_durable_tasks.celery.prepared_messages import RedisTexts, prepare
from django_durable_tasks.ports import TaskMessage

TASK_ID = uuid.UUID("018f0000-0000-7000-8000-000000000001")
MESSAGES = [
    TaskMessage(TASK_ID, 1, 1, "project.noop", "default", 0),
    TaskMessage(TASK_ID, 12, 3, "project.noop", "default", 9, idempotency_key="a/2026-03-02Z"),
    TaskMessage(TASK_ID, 1, 1, "100%s %(key)s", "50%", 5, idempotency_key='%d "quoted" \\ é\n'),
    TaskMessage(TASK_ID, 1, 1, "project.noop", "größe {x}", 0, timeout=2.5, soft_timeout=1.0),
]


@pytest.fixture
def channel() -> Iterator[Any]:
    """Return a channel that encodes messages as the channel for Redis does."""
    with Connection("memory://") as connection:
        yield connection.default_channel


def _encoded(channel: Any, message: TaskMessage) -> Any:
    prepared = prepare(channel, "redis", message, _queue(message))
    channel._inplace_augment_message(prepared, "", message.queue)
    return json.loads(dumps(prepared))


def _queue(message: TaskMessage) -> Any:
    return SimpleNamespace(name=message.queue)


def _without_tag(message: Any) -> tuple[Any, str]:
    tag = message["properties"].pop("delivery_tag")
    return message, tag


@pytest.mark.parametrize("message", MESSAGES)
def test_a_text_equals_the_message_that_is_encoded_without_a_template(
    channel: Any, message: TaskMessage
) -> None:
    texts = RedisTexts()
    for other in MESSAGES:
        texts.text(channel, other, _queue(other))
    found, tag = _without_tag(json.loads(texts.text(channel, message, _queue(message))))
    assert found == _without_tag(_encoded(channel, message))[0]
    assert uuid.UUID(tag).version == 4


def test_each_text_has_its_own_delivery_tag(channel: Any) -> None:
    texts, queue = RedisTexts(), _queue(MESSAGES[0])
    tags = {_without_tag(json.loads(texts.text(channel, MESSAGES[0], queue)))[1] for _ in range(3)}
    assert len(tags) == 3


def test_messages_that_a_receiver_may_change_and_batch_messages_have_no_text() -> None:
    texts = RedisTexts()
    batch = TaskMessage(TASK_ID, 1, 1, "start", "default", 0, batch_of="project.noop")
    assert texts.apply(MESSAGES[0])
    assert not texts.apply(batch)

    def receiver(**values: Any) -> None:
        pass

    signals.before_task_publish.connect(receiver)
    try:
        assert not texts.apply(MESSAGES[0])
    finally:
        signals.before_task_publish.disconnect(receiver)


def test_a_receiver_gets_the_body_that_celery_documents(channel: Any) -> None:
    seen = list[Any]()

    def receiver(body: Any, **values: Any) -> None:
        args, kwargs, embed = body
        seen.append((args, kwargs, sorted(embed)))

    signals.before_task_publish.connect(receiver)
    try:
        prepared_messages.prepare(channel, "redis", MESSAGES[0], _queue(MESSAGES[0]))
    finally:
        signals.before_task_publish.disconnect(receiver)
    assert seen == [([], {}, ["callbacks", "chain", "chord", "errbacks"])]


def test_more_kinds_of_messages_than_are_kept_have_a_text(
    channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared_messages, "_MAX_TEMPLATES", 2)
    texts = RedisTexts()
    for message in [*MESSAGES, *MESSAGES]:
        found = json.loads(texts.text(channel, message, _queue(message)))
        assert found["headers"]["task"] == message.name
    assert len(texts) <= 2
