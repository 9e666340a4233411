"""Reads the state of the whole installation: for people, for health probes and for the metrics."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Min

from django_durable_tasks.choices import WITH_DUE_AT, LogStatus, Status
from django_durable_tasks.cluster import nodes, queues
from django_durable_tasks.cluster.queues import Depth
from django_durable_tasks.limits import config, operator_limits
from django_durable_tasks.limits.operator_limits import LimitUsage
from django_durable_tasks.models import (
    BatchMessage,
    Node,
    NodeKind,
    QueueControl,
    SchedulerLease,
    Task,
    TaskExecutionLog,
)
from django_durable_tasks.models.cluster import NodeQuerySet, lease_name
from django_durable_tasks.schedules.lifecycle import recurring
from django_durable_tasks.schedules.misfires import QUARANTINED
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.store.dialects import MYSQL, POSTGRESQL, verb
from django_durable_tasks.store.tables import database, read, tasks
from django_durable_tasks.tasks import operator_actions
from django_durable_tasks.tasks.explanations import OutstandingMessage, TaskSituation, ago

# Finds nodes that send heartbeats but make no progress.
#
# Such a node is never declared dead. The probe ``durable health`` reports it, so that the
# supervisor restarts it.


STALLED_AFTER = 60.0
"""Seconds without a poll after which a scheduler has stalled, and without a start a worker that has
free processes while tasks of its queues wait. Three node timeouts: by then a paused process is back
or was declared dead.
"""
CLOCK_STEP_SHOWN = timedelta(hours=1)
"""How long a step of the database's clock is reported. Afterwards nothing depends on it."""


def is_silent(node: Node, now: datetime) -> bool:
    """Return whether the last heartbeat of the node is older than the node timeout. One that is
    later than now by more than that was sent before the database's clock was set back.
    """
    return abs(now - node.last_seen_at) > timedelta(seconds=nodes.timeout())


def recent_clock_step(nodes_: Iterable[Node], now: datetime) -> Node | None:
    """Return the node that noticed the last step of the database's clock, if that was less than
    CLOCK_STEP_SHOWN ago.
    """
    found = [
        (node.clock_step_at, node.pk, node)
        for node in nodes_
        if node.clock_step_at is not None and node.clock_step_at > now - CLOCK_STEP_SHOWN
    ]
    return max(found)[2] if found else None


def stalled(candidates: Iterable[Node], now: datetime) -> dict[uuid.UUID, str]:
    """Return the stalled nodes, each with the reason; two statements if a worker has to be judged.

    A worker is judged only if it has free processes, does not drain, and serves a queue that is not
    paused.
    """
    found, idle = dict[uuid.UUID, str](), list[tuple[Node, float]]()
    for node in candidates:
        if is_silent(node, now) or node.draining:
            continue
        still = _seconds_without_work(node, now)
        if still is None or still <= STALLED_AFTER:
            continue
        if node.kind == NodeKind.SCHEDULER:
            found[node.pk] = f"it has not polled for due tasks for {ago(still)}"
        elif _has_free_processes(node):
            idle.append((node, still))
    waiting = _waiting_since(now) if idle else {}
    for node, still in idle:
        queue = next((name for name in node.queues if name in waiting), None)
        if queue is not None:
            found[node.pk] = (
                f"it has free processes and has started no task for {ago(still)}, though tasks wait"
                f" published in queue {queue} since {ago((now - waiting[queue]).total_seconds())}"
            )
    return found


def _seconds_without_work(node: Node, now: datetime) -> float | None:
    """Return the seconds since the node last did work; None if its release does not report this."""
    if node.versions is None:
        return None
    last = node.last_scan_at if node.kind == NodeKind.SCHEDULER else node.last_start_at
    return (now - max(last or node.started_at, node.started_at)).total_seconds()


def _has_free_processes(node: Node) -> bool:
    return node.active is not None and int(node.active.get("number", 0)) < node.concurrency


def _waiting_since(now: datetime) -> dict[str, datetime]:
    """Return the queues with tasks that were published and not started for STALLED_AFTER seconds,
    each with the oldest time.
    """
    long_ago = now - timedelta(seconds=STALLED_AFTER)
    paused = (
        QueueControl.objects.using(database())
        .filter(paused_at__isnull=False)
        .values_list("name", flat=True)
    )
    # A worker without a connection to the broker reports a start just now and is not judged.
    published = tasks().queued().filter(updated_at__lt=long_ago)
    waiting = published.exclude(queue__in=list(paused)).order_by()
    return dict(waiting.values_list("queue").annotate(since=Min("updated_at")))


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """The health of one node as a probe reports it; ``fault`` is empty if the node is healthy."""

    node: Node
    state: str
    fault: str


def vitals(question: NodeQuerySet) -> list[NodeHealth]:
    """Judge the newest node of each kind and name. A process that was restarted has an older row
    too.
    """
    newest = {
        (node.kind, node.name): node for node in question.using(database()).order_by("started_at")
    }
    now, running = (
        database_now(),
        {(node.kind, node.host) for node in newest.values() if node.stopped_at is None},
    )
    # Skip a stopped node if a node of the same kind runs on its host. It may be the replacement
    # under another name, because names may contain a process id.
    judged = [
        node
        for node in newest.values()
        if node.stopped_at is None or (node.kind, node.host) not in running
    ]
    found = sorted(judged, key=lambda node: (node.kind, node.name))
    still = stalled([node for node in found if node.stopped_at is None], now)
    return [_vital(node, now, still.get(node.pk, "")) for node in found]


def _vital(node: Node, now: datetime, stall: str) -> NodeHealth:
    since = ago((now - node.last_seen_at).total_seconds())
    if node.declared_dead:
        return NodeHealth(node, "dead", f"it was declared dead, last seen {since} ago")
    if node.stopped_at is not None:
        return NodeHealth(node, "left", "it has left")
    if is_silent(node, now):
        return NodeHealth(node, "silent", f"it was last seen {since} ago")
    if stall:
        return NodeHealth(node, "stalled", stall)
    return NodeHealth(node, "draining" if node.draining else "alive", "")


# Reads the state of the whole installation: leader, nodes, queues, limits and connections. Writes
# nothing.
#
# Called by the admin and the command line.


_PER_CHILD, _PER_THREAD, PER_SCHEDULER = 3, 2, 8
_FORKING = "prefork"
LATE = timedelta(seconds=10)
COUNTED = 1_000
ALERTS = 100
ALERT_SOURCES: dict[str, Callable[[int], Iterable[Any]]] = {}
"""Functions of optional apps, by their labels: each returns the oldest open alerts, at most as many
as its argument.
"""


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
    alerts: list[Any]
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
        return recent_clock_step(self.nodes, self.now)

    def alive(self, kind: NodeKind) -> list[Node]:
        """Return the nodes of this kind with a heartbeat within the node timeout."""
        return [node for node in self.nodes if node.kind == kind and not self.is_silent(node)]

    def is_silent(self, node: Node) -> bool:
        """Return whether the last heartbeat of the node is older than the node timeout."""
        return is_silent(node, self.now)


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
        stalled=stalled(alive_nodes, now),
        leader=next(
            (node for node in alive_nodes if lease is not None and node.pk == lease.holder), None
        ),
        term=lease.term if lease else 0,
        led_until=lease.expires_at if lease else None,
        dead_letters=operator_actions.open_letters(),
        alerts=[alert for read in ALERT_SOURCES.values() for alert in read(ALERTS)],
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


@verb
def _connections_allowed() -> int | None:
    return None


@_connections_allowed.on(POSTGRESQL)
def _connections_allowed_by_postgresql() -> int | None:
    return int(read("SHOW max_connections", {})[0][0])


@_connections_allowed.on(MYSQL)
def _connections_allowed_by_mysql() -> int | None:
    return int(read("SELECT @@max_connections", {})[0][0])


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
