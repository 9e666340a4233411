"""Repairs of workers: consumed queues, prefetch counts, waking consumers, and messages in Redis."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from typing import Any

from celery import bootsteps, signals
from celery.app import backends
from celery.concurrency.thread import TaskPool
from celery.utils.imports import load_extension_class_names
from kombu import Message

from django_durable_tasks.celery.prepared_messages import BATCH_HEADER, CONSUMED_FROM, HEADER

# Records from which queue a message was consumed. The worker's consumer writes it; the gate and
# the report of the worker read it.
#
# The exchange and routing key of a message show where it was sent, not where it arrived. Only the
# consumer knows the queue. It overwrites what the message contains.


class _RecordedQueue:
    """A queue that adds its name to the headers of the messages it delivers."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def consume(self, consumer_tag: str, callback: Callable[[Any], Any], **options: Any) -> Any:
        return self._queue.consume(
            consumer_tag, partial(_deliver, self._queue.name, callback), **options
        )


def _deliver(queue: str, callback: Callable[[Any], Any], message: Any) -> Any:
    # py-amqp's message becomes Kombu's in the callback.
    headers = (
        message.headers
        if isinstance(message, Message)
        else message.properties.get("application_headers")
    )
    if headers and (HEADER in headers or BATCH_HEADER in headers):
        headers[CONSUMED_FROM] = queue
    else:
        mixed.received_foreign(queue)
    return callback(message)


class MixedQueues:
    """The queues from which this worker has consumed messages that belong to no task."""

    _FOR = 3_600.0
    """Seconds. Long enough for a queue whose foreign messages run for a long time."""

    def __init__(self) -> None:
        self._at: dict[str, float] = {}

    def received_foreign(self, queue: str) -> None:
        """Record such a message."""
        self._at[queue] = time.monotonic()

    def recent(self) -> list[str]:
        """Return these queues."""
        since = time.monotonic() - self._FOR
        return [queue for queue, at in list(self._at.items()) if at > since]


mixed = MixedQueues()


def record_queues(app: Any) -> None:
    """Make new consumers of this application record the queue of each message."""
    consumer: Any = app.amqp.Consumer
    if getattr(consumer, "records_queues", False):
        return

    class Consumer(consumer):
        records_queues = True

        def _basic_consume(self, queue: Any, *args: Any, **options: Any) -> Any:
            return super()._basic_consume(_RecordedQueue(queue), *args, **options)

    app.amqp.Consumer = Consumer


# Leaves the prefetch count of a worker with the pool ``threads`` as it is after a lost connection.
#
# Celery reduces it by the running tasks and raises it again with each acknowledgement. Threads
# acknowledge messages themselves, so one of them would then wait for RabbitMQ's reply on the
# connection that the event loop reads. Each can take a part of the other's frames, and the worker
# stops consuming for ever while its heartbeats continue (Celery 5.7).


class KeepPrefetchCount(bootsteps.StartStopStep):
    """A step of the consumer that disables ``worker_enable_prefetch_count_reduction``."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def include_if(self, parent: Any) -> bool:
        """Return whether the tasks run in threads of this process."""
        return isinstance(parent.pool, TaskPool)

    def start(self, parent: Any) -> None:
        """Disable it before a connection can be lost."""
        parent.app.conf.worker_enable_prefetch_count_reduction = False


# Wakes the consumer of a worker with the pool ``threads`` when one of its threads has capacity.
#
# The event loop reads the next message from Redis only if fewer messages than the prefetch count
# are unacknowledged. Threads acknowledge messages without waking the event loop. Without this step
# it would notice free threads with its next timer, after up to ten seconds.


class WakeConsumer(bootsteps.StartStopStep):
    """A step of the consumer that wakes its event loop at each start and end of a task."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self._reader, self._writer = -1, -1
        self._waking = False

    def include_if(self, parent: Any) -> bool:
        """Return whether the tasks run in threads of this process."""
        return isinstance(parent.pool, TaskPool) and parent.hub is not None

    def register_with_event_loop(self, parent: Any, hub: Any) -> None:
        """Read the pipe in the event loop. Called again after a lost connection, which clears the
        readers of the loop.
        """
        if self._reader < 0:
            self._reader, self._writer = os.pipe()
            for end in (self._reader, self._writer):
                os.set_blocking(end, False)
            self._observe(parent.pool)
        hub.add_reader(self._reader, self._on_readable)

    def _observe(self, pool: Any) -> None:
        # Early acknowledgement happens before task_prerun. Late acknowledgement and the count of
        # reserved messages (worker_disable_prefetch) follow at the very end, after task_postrun.
        signals.task_prerun.connect(self.wake, weak=False, dispatch_uid=f"{__name__}.wake")
        apply = pool.on_apply

        def on_apply(*args: Any, **options: Any) -> Any:
            result = apply(*args, **options)
            result.f.add_done_callback(self.wake)
            return result

        pool.on_apply = on_apply

    def wake(self, *_: Any, **__: Any) -> None:
        """Wake the event loop; safe in every thread."""
        if not self._waking:
            self._waking = True
            # A full pipe wakes the loop too.
            with suppress(BlockingIOError):
                os.write(self._writer, b".")

    def _on_readable(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._reader, 4_096)
        # Reset after the read, which could otherwise take the byte of a wake whose flag remains
        # set. A thread that saw the flag has acknowledged before, and the loop looks afterwards.
        self._waking = False


# Lets each thread of the pool ``threads`` create its result backend quickly.
#
# Celery creates one in each thread, and reads the entry points of all installed packages for it. In
# a worker that started 1,000 tasks at once this was a fifth of its time.


class KeepBackendNames(bootsteps.StartStopStep):
    """A step of the consumer that reads the names of result backends once."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def include_if(self, parent: Any) -> bool:
        """Return whether the tasks run in threads of this process."""
        return isinstance(parent.pool, TaskPool)

    def start(self, parent: Any) -> None:
        """Keep what Celery reads now."""
        backends.load_extension_class_names = _backend_names


@cache
def _backend_names(namespace: str) -> tuple[Any, ...]:
    return tuple(load_extension_class_names(namespace))


# Stops Kombu from storing the messages of durable tasks as unacknowledged in Redis.
#
# Kombu copies each message that a worker reads into a hash and a sorted set, and removes both
# entries when it is acknowledged. For a durable task this protects nothing: its row is QUEUED
# until the run starts, and is published again after REPUBLISH_AFTER. Other messages keep their
# copies.


_TRANSPORT = "kombu.transport.redis"


class RowMessages(bootsteps.StartStopStep):
    """A step of the consumer that changes the record of its channel, after each connection."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, parent: Any) -> None:
        """Change the record if the broker is Redis."""
        qos = getattr(parent.task_consumer.channel, "qos", None)
        if type(qos).__module__ == _TRANSPORT:
            # Here, because every command would load the client of Redis, whatever the broker is.
            from django_durable_tasks.celery import redis_records  # noqa: PLC0415

            redis_records.keep_in_memory(qos)


STEPS = (KeepPrefetchCount, WakeConsumer, KeepBackendNames, RowMessages)
"""The steps that repair the consumers of an application."""
