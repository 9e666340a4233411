"""Programs for the processes of the filesystem transport's tests: `python -m … COMMAND URL …`."""

# mypy: disable-error-code="no-untyped-call"

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from kombu import Connection, Consumer, Exchange, Producer, Queue

from django_durable_tasks.celery.filesystem import register


def produce(url: str, queue: str, first: str, count: str) -> None:
    """Publish the numbers from `first` on."""
    with Connection(url) as connection:
        producer = Producer(connection)
        for number in range(int(first), int(first) + int(count)):
            producer.publish({"number": number}, routing_key=queue)


def consume(url: str, queue: str, notebook: str) -> None:
    """Write each number as a line until SIGTERM."""
    told_to_stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: told_to_stop.append(number))
    Path(f"{notebook}.{os.getpid()}").touch()  # from here on SIGTERM ends it properly
    file = os.open(notebook, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def note(body: dict[str, Any], message: Any) -> None:
        os.write(file, f"{body['number']}\n".encode())
        message.ack()

    with (
        Connection(url) as connection,
        Consumer(connection, [_plain(queue)], callbacks=[note], prefetch_count=1),
    ):
        while not told_to_stop:
            with suppress(TimeoutError):
                connection.drain_events(timeout=0.2)


def bind(url: str, exchange: str, prefix: str, count: str) -> None:
    """Bind `count` queues to one fanout exchange."""
    fanout = Exchange(exchange, type="fanout")
    with Connection(url) as connection:
        for number in range(int(count)):
            Queue(f"{prefix}.{number}", exchange=fanout)(connection.default_channel).declare()


def _plain(name: str) -> Queue:
    return Queue(name, exchange=Exchange(""), routing_key=name, no_declare=True)


if __name__ == "__main__":
    register()
    operations: dict[str, Callable[..., None]] = {
        "produce": produce,
        "consume": consume,
        "bind": bind,
    }
    operations[sys.argv[1]](*sys.argv[2:])
