"""Nodes report outages of the broker; the leader then compares all QUEUED tasks with messages."""

from __future__ import annotations

import time

import pytest

from django_durable_tasks.choices import Status
from django_durable_tasks.cluster import nodes
from django_durable_tasks.cluster.nodes import NodeReport
from django_durable_tasks.models import Task
from tests.factories import QUEUE, a_node, a_task
from tests.messages import take_task_messages
from tests.republishing import Leader

pytestmark = pytest.mark.django_db(transaction=True)


def test_queued_tasks_are_compared_once_if_nodes_report_an_outage() -> None:
    take_task_messages(QUEUE)
    leader = Leader()
    leader.at = time.monotonic()
    one, two = a_node(queues=[QUEUE]), a_node(queues=[QUEUE])
    nodes.beat(one.pk, NodeReport(broker_outages=4))

    def compare() -> int:
        leader.monitor.record_broker_outages(nodes.broker_outages(), leader.at)
        return leader.compare()

    assert compare() == 0, "outages before the first read are over"
    rows = [a_task(Status.QUEUED, due=9) for _ in range(3)]
    assert compare() == 0, "they do not wait for long enough"
    for node in (one, two):
        nodes.beat(node.pk, NodeReport(broker_outages=5))
    assert compare() == 3
    assert {message.task_id for message in take_task_messages(QUEUE)} == {row.pk for row in rows}
    leader.comparison._reports_from = leader.at + 3_600
    Task.objects.unguarded().update(due_at=rows[0].due_at)
    nodes.beat(a_node(queues=[QUEUE]).pk, NodeReport(broker_outages=1))
    leader.compare()
    assert take_task_messages(QUEUE) == [], "reports within 15 s are those of one outage"
