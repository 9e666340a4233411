"""A process that forks while one of its threads writes to SQLite has children that can write, too."""

from __future__ import annotations

import os
from threading import Event, Thread

import pytest
from django.db import connections, transaction

from django_durable_tasks.cluster import nodes
from django_durable_tasks.models import NodeKind, QueueControl
from django_durable_tasks.store.connections import dedicated_connection
from tests.factories import a_node

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.sqlite]


def _write_until(stop: Event, begun: Event) -> None:
    while not stop.wait(
        0.02
    ):  # SQLite does not queue writers: without a pause no other connection would ever write
        with dedicated_connection(), transaction.atomic():
            QueueControl.objects.update_or_create(name="busy")
            begun.set()
            sum(range(300_000))


def _child_writes() -> bool:
    child = os.fork()
    if child == 0:
        try:
            with dedicated_connection():
                written = QueueControl.objects.filter(name="busy").update(reason="child")
        except BaseException:  # noqa: BLE001 - nothing of the parent's tests may go on in the child
            os._exit(1)
        os._exit(0 if written else 1)
    return os.waitpid(child, 0)[1] == 0


def test_children_of_a_writing_process_can_write() -> None:
    connections.close_all()
    stop, begun = Event(), Event()
    writer = Thread(target=_write_until, args=(stop, begun))
    writer.start()
    try:
        assert begun.wait(20)
        assert all(_child_writes() for _ in range(20))
    finally:
        stop.set()
        writer.join(20)


def test_a_fork_inside_the_write_lock_does_not_deadlock() -> None:
    node = a_node(kind=NodeKind.SCHEDULER)
    with dedicated_connection():
        child = os.fork()
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        nodes.beat(node.pk)
