"""Nodes report outages of the broker; the leader then republishes all QUEUED tasks."""

from __future__ import annotations

import time
from typing import Any

import pytest

from django_durable_tasks.engine.cluster import nodes
from django_durable_tasks.engine.cluster.nodes import HeartbeatMonitor, NodeReport
from django_durable_tasks.engine.db.clock import database_now
from django_durable_tasks.rules.states import Status
from django_durable_tasks.scheduler.maintenance.republish_after_outage import RepublishAfterOutage
from tests.factories import QUEUE, a_node, a_task
from tests.messages import take_task_messages

pytestmark = pytest.mark.django_db(transaction=True)


def test_queued_tasks_are_republished_once_if_nodes_report_an_outage(settings: Any) -> None:
    settings.DURABLE_TASKS = {"BATCH_SIZE": 2}
    job, monitor = RepublishAfterOutage(), HeartbeatMonitor()
    rows = [a_task(Status.QUEUED, due=3_600, publish_count=7) for _ in range(3)]
    one, two = a_node(queues=[QUEUE]), a_node(queues=[QUEUE])
    nodes.beat(one.pk, NodeReport(broker_outages=4))

    def act() -> int:
        monitor.record_broker_outages(nodes.broker_outages(), time.monotonic())
        return job(database_now(), monitor)

    assert [act(), act()] == [0, 0], "outages before the first read are over"
    for node in (one, two):
        nodes.beat(node.pk, NodeReport(broker_outages=5))
    assert [act() for _ in range(3)] == [2, 1, 0]
    assert {message.task_id for message in take_task_messages(QUEUE)} == {row.pk for row in rows}
    nodes.beat(a_node(queues=[QUEUE]).pk, NodeReport(broker_outages=1))
    assert [act(), act()] == [0, 0], "reports within 15 s are those of one outage"
    job._reports_from = time.monotonic()
    assert [act() for _ in range(3)] == [2, 1, 0]
    take_task_messages(QUEUE)
