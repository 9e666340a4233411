"""Reads the state of the whole installation: leader, nodes, queues, limits and connections. Writes
nothing.

Called by the admin and the command line.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import connections
from django.db.models import Count

from django_durable_tasks.engine.cluster import health, nodes, queues
from django_durable_tasks.engine.cluster.queues import Depth
from django_durable_tasks.engine.db.clock import database_now
from django_durable_tasks.engine.db.tables import database, tasks
from django_durable_tasks.engine.limits import config, operator_limits
from django_durable_tasks.engine.limits.operator_limits import LimitUsage
from django_durable_tasks.engine.recurring.schedules import recurring
from django_durable_tasks.engine.tasks import dead_letters
from django_durable_tasks.models import (
    Alert,
    BatchMessage,
    Node,
    NodeKind,
    QueueControl,
    SchedulerLease,
    Task,
    TaskExecutionLog,
)
from django_durable_tasks.models.lease import lease_name
from django_durable_tasks.rules.recurring.policies import QUARANTINED
from django_durable_tasks.rules.states import WITH_DUE_AT, LogStatus, Status
from django_durable_tasks.rules.tasks.explanations import OutstandingMessage, TaskSituation

_PER_CHILD, _PER_THREAD, PER_SCHEDULER = 3, 2, 8
_FORKING = "prefork"
LATE = timedelta(seconds=10)
COUNTED = 1_000
ALERTS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The state of the installation at one moment.

    ``unknown`` counts the waiting tasks of each name that this process has not registered.
    ``stalled`` maps nodes that make no progress to the reason. ``leader`` is that of this region.
    ``limits`` are those for which tasks wait. ``alerts`` are the oldest ALERTS that are open; the
    leader records them if NOTIFICATIONS is on. A schedule is late LATE after its fire time. Late
    and quarantined schedules are counted up to COUNTED.
    """

    now: datetime
    depths: list[Depth]
    nodes: list[Node]
    stalled: dict[uuid.UUID, str]
    leader: Node | None
    term: int
    led_until: datetime | None
    dead_letters: int
    alerts: list[Alert]
    late_schedules: int
    quarantined: int
    unknown: dict[str, int]
    connections_needed: int
    connections_allowed: int | None
    limits: list[LimitUsage]

    @property
    def is_led(self) -> bool:
        """Whether the leader's lease is valid."""
        return self.led_until is not None and self.led_until > self.now

    @property
    def clock_step(self) -> Node | None:
        """Return the node that noticed the last recent step of the database's clock, if any."""
        return health.recent_clock_step(self.nodes, self.now)

    def alive(self, kind: NodeKind) -> list[Node]:
        """Return the nodes of this kind with a heartbeat within the node timeout."""
        return [node for node in self.nodes if node.kind == kind and not self.is_silent(node)]

    def is_silent(self, node: Node) -> bool:
        """Return whether the last heartbeat of the node is older than the node timeout."""
        return health.is_silent(node, self.now)


def overview(known: Collection[str]) -> Overview:
    """Read the state; the number of statements does not depend on the number of tasks.

    ``known`` contains the names of the tasks that this process has registered.
    """
    now = database_now()
    lease = SchedulerLease.objects.using(database()).filter(name=lease_name()).first()
    alive_nodes = list(Node.objects.using(database()).alive().order_by("kind", "name"))
    return Overview(
        now=now,
        depths=queues.depths(now),
        nodes=alive_nodes,
        stalled=health.stalled(alive_nodes, now),
        leader=next(
            (node for node in alive_nodes if lease is not None and node.pk == lease.holder), None
        ),
        term=lease.term if lease else 0,
        led_until=lease.expires_at if lease else None,
        dead_letters=dead_letters.open_count(),
        alerts=list(Alert.objects.using(database()).order_by("pk")[:ALERTS]),
        late_schedules=recurring().active().filter(next_run_at__lt=now - LATE)[:COUNTED].count(),
        quarantined=recurring().paused().filter(status_reason=QUARANTINED)[:COUNTED].count(),
        unknown=_unknown(known),
        limits=operator_limits.limits_with_waiting_tasks(),
        connections_needed=connections_needed(alive_nodes),
        connections_allowed=_connections_allowed(),
    )


def _unknown(known: Collection[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    # Each has an index of its own.
    for waiting in (tasks().published_alone(), tasks().waiting_for_batch(), tasks().queued()):
        unregistered = (
            waiting.exclude(name__in=list(known))
            .order_by()
            .values_list("name")
            .annotate(number=Count("*"))
        )
        for name, number in unregistered:
            found[name] = found.get(name, 0) + number
    return dict(sorted(found.items()))


def connections_needed(all_nodes: Sequence[Node]) -> int:
    """Return the maximum number of database connections of these nodes.

    A prefork child has three: for gate and endings, for its heartbeat, and for the task function.
    Its parent has one, for the heartbeat of the node. Other pools have two for the heartbeats of
    node and runs, and two per thread. A scheduler has eight, two of them to receive notifications.
    """
    number = 0
    for node in all_nodes:
        if node.kind == NodeKind.SCHEDULER:
            number += PER_SCHEDULER
        elif node.pool == _FORKING:
            number += 1 + _PER_CHILD * node.concurrency
        else:
            number += 2 + _PER_THREAD * node.concurrency
    return number


def _connections_allowed() -> int | None:
    connection = connections[database()]
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SHOW max_connections")
            return int(cursor.fetchone()[0])
        if connection.vendor == "mysql":
            cursor.execute("SHOW VARIABLES WHERE Variable_name = 'max_connections'")
            return int(cursor.fetchone()[1])
    return None


def situation(task: Task, *, known: bool, has_batches: bool = False) -> tuple[TaskSituation, bool]:
    """Return the task with the state that its explanation needs, and whether there is a leader.

    ``has_batches``: the function of the task runs in batches.
    """
    now = database_now()
    paused = QueueControl.objects.using(database()).filter(paused_at__isnull=False)
    pause = paused.filter(name=task.queue).first()
    seen = now - timedelta(seconds=nodes.timeout())
    alive = list(Node.objects.using(database()).alive().filter(last_seen_at__gte=seen))
    leases = SchedulerLease.objects.using(database()).filter(expires_at__gt=now)
    led = leases.filter(name=lease_name()).exists()
    found = TaskSituation(
        now=now,
        status=task.status,
        queue=task.queue,
        name=task.name,
        due_at=task.due_at,
        lease_until=task.lease_until,
        started_at=task.started_at,
        expires_at=task.expires_at,
        overdue=_is_overdue(task, now),
        held=task.is_waiting,
        limited=operator_limits.why(task),
        cancel_requested=task.cancel_requested_at is not None,
        attempts=task.attempts,
        failures=task.failures,
        max_attempts=task.max_attempts,
        crashes=task.crashes,
        in_batch=task.in_batch,
        batch_message=_outstanding_message(task) if task.in_batch else None,
        alone_after_crash=has_batches and not task.in_batch and _was_lost(task),
        publish_count=task.publish_count,
        unresolved=task.unresolved_dependencies_count,
        reason=task.reason,
        paused=pause is not None,
        paused_by=pause.paused_by if pause else "",
        pause_reason=pause.reason if pause else "",
        schedulers=sum(node.kind == NodeKind.SCHEDULER for node in alive),
        workers=sum(node.kind == NodeKind.WORKER and task.queue in node.queues for node in alive),
        no_worker_has_it=task.status in WITH_DUE_AT
        and config.limits_in_force().lacks_worker(task.name, task.queue),
        known=known,
    )
    return found, led


def _is_overdue(task: Task, now: datetime) -> bool:
    if task.expected_duration is None or task.started_at is None:
        return False
    return task.status == Status.RUNNING and now - task.started_at > task.expected_duration


def _outstanding_message(task: Task) -> OutstandingMessage | None:
    """Return the batch message of the name and queue of this task that no worker has received."""
    messages = BatchMessage.objects.using(database()).filter(queue=task.queue, name=task.name)
    due_at, count = messages.values_list("due_at", "publish_count").first() or (None, 0)
    return None if due_at is None else OutstandingMessage(due_at, count)


def _was_lost(task: Task) -> bool:
    logs = TaskExecutionLog.objects.using(database()).filter(task_id=task.pk)
    return bool(logs.filter(status=LogStatus.LOST).exists())
