"""Nodes send heartbeats; a monitor counts the checks without a new heartbeat."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_durable_tasks.cluster import nodes
from django_durable_tasks.cluster.nodes import HeartbeatMonitor
from django_durable_tasks.models import Node, NodeKind
from tests.factories import a_node

A, B = uuid.UUID(int=1), uuid.UUID(int=2)
EVERY, WITHIN = 5.0, 15.0


class _Watch:
    """A monitor with a clock that advances by five seconds per check."""

    def __init__(self) -> None:
        self.monitor, self.now = HeartbeatMonitor(), 0.0

    def look(self, beats: dict[uuid.UUID, int], after: float = EVERY) -> None:
        self.now += after
        self.monitor.record(beats, self.now, WITHIN)


@pytest.mark.parametrize(
    ("beats", "silent"),
    [(range(20), []), ([1] * 6, [A]), ([1, 1, 1, 2], []), ([1, 1, 1, 1, 1, None], [])],
    ids=["rises", "is silent", "one heartbeat", "left"],
)
def test_a_node_is_silent_after_several_checks_without_a_heartbeat(
    beats: Sequence[int | None], silent: list[uuid.UUID]
) -> None:
    watch = _Watch()
    for number, beat in enumerate(beats):
        watch.look({B: number} if beat is None else {A: beat, B: number})
    assert watch.monitor.silent(5 if silent else 1) == silent
    assert watch.monitor.silent(6) == []


def test_an_outage_of_the_database_declares_no_node_dead() -> None:
    watch = _Watch()
    for _ in range(4):
        watch.look({A: 1})
    watch.monitor.missed()
    assert (watch.monitor.silent(1), watch.monitor.contact) == ([], 0)
    for _ in range(3):
        watch.look({A: 1})
    assert (watch.monitor.silent(4), watch.monitor.contact) == ([], 3)


def test_a_monitor_that_was_suspended_starts_again() -> None:
    watch = _Watch()
    for _ in range(4):
        watch.look({A: 1})
    watch.look({A: 1}, after=WITHIN + 1)
    assert watch.monitor.silent(2) == []
    assert watch.monitor.contact == 1


@given(
    st.lists(st.sampled_from(["beat", "quiet", "missed", "slept"]), max_size=60), st.integers(1, 5)
)
def test_a_node_is_declared_dead_only_after_unbroken_contact_for_the_whole_threshold(
    events: list[str], threshold: int
) -> None:
    watch, beats, quiet = _Watch(), 1, -1
    for event in events:
        if event == "missed":
            watch.monitor.missed()
            quiet = min(quiet, 0)
            continue
        beats += event == "beat"
        if event == "slept":
            quiet = min(quiet, 0)
        watch.look({A: beats}, after=WITHIN + 1 if event == "slept" else EVERY)
        quiet = 0 if event == "beat" or quiet < 0 else quiet + 1
        assert (A in watch.monitor.silent(threshold)) == (quiet >= threshold)


@pytest.mark.django_db
def test_a_node_registers_sends_heartbeats_and_leaves() -> None:
    me = uuid.uuid4()
    details: dict[str, Any] = {"pool": "prefork", "concurrency": 4, "queues": ["a", "b"]}
    nodes.register(me, "worker@host", NodeKind.WORKER, **details)
    assert nodes.beats() == {me: 1}
    assert nodes.beat(me)
    assert nodes.beats() == {me: 2}
    nodes.leave(me)
    assert (nodes.beats(), nodes.beat(me)) == ({}, False)
    row = Node.objects.filter(pk=me, stopped_at__isnull=False, declared_dead=False)
    assert row.values(*details).get() == details


@pytest.mark.django_db
def test_the_next_heartbeat_of_a_node_declared_dead_reports_it() -> None:
    node = a_node()
    assert nodes.declare_dead([node.pk]) == 1
    assert nodes.declare_dead([node.pk]) == 0
    assert not nodes.beat(node.pk)
