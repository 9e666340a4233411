"""Reads the state of the whole installation: for people, for health probes and for the metrics."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Min

from django_durable_tasks import ports
from django_durable_tasks.choices import WITH_DUE_AT, LogStatus, Status
from django_durable_tasks.cluster import nodes, queues
from django_durable_tasks.cluster.queues import Depth
from django_durable_tasks.limits import config, operator_limits
from django_durable_tasks.limits.backpressure import heads, paused_queues
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
from django_durable_tasks.schedules.misfires import QUARANTINED
from django_durable_tasks.schedules.schedule_cache import recurring
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.store.connections import PLACES
from django_durable_tasks.store.dialects import MYSQL, POSTGRESQL, verb
from django_durable_tasks.store.tables import BoundedCount, database, read, tasks
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
    steps = [
        (node.clock_step_at, node.pk, node)
        for node in nodes_
        if node.clock_step_at is not None and node.clock_step_at > now - CLOCK_STEP_SHOWN
    ]
    return max(steps)[2] if steps else None


def stalled(candidates: Iterable[Node], now: datetime) -> dict[uuid.UUID, str]:
    """Return the stalled nodes, each with the reason; two statements if a worker has to be judged.

    A worker is judged only if it has free processes, does not drain, and serves a queue that is not
    paused.
    """
    reasons, idle = dict[uuid.UUID, str](), list[tuple[Node, float]]()
    for node in candidates:
        if is_silent(node, now) or node.draining or node.versions is None:
            continue  # an older release does not report when it last did work
        is_scheduler = node.kind == NodeKind.SCHEDULER
        worked_at = node.last_scan_at if is_scheduler else node.last_start_at
        still = (now - max(worked_at or node.started_at, node.started_at)).total_seconds()
        if still <= STALLED_AFTER:
            continue
        if is_scheduler:
            reasons[node.pk] = f"it has not polled for due tasks for {ago(still)}"
        elif node.active is not None and int(node.active.get("number", 0)) < node.concurrency:
            idle.append((node, still))
    waiting = dict[str, datetime]()
    if idle:
        waiting = _waiting(now - timedelta(seconds=STALLED_AFTER))
    for node, still in idle:
        queue = next((name for name in node.queues if name in waiting), None)
        if queue is not None:
            reasons[node.pk] = (
                f"it has free processes and has started no task for {ago(still)}, though tasks wait"
                f" in queue {queue} since {ago((now - waiting[queue]).total_seconds())}"
            )
    return reasons


def _waiting(since: datetime) -> dict[str, datetime]:
    """Return the queues with tasks that a worker could have started since this time, and did not,
    each with the time since which the first one waits.

    A worker without a connection to the broker reports a start just now and is not judged.
    """
    paused = paused_queues()
    if ports.takes_tasks():
        return {queue: at for queue, at in heads().items() if at < since and queue not in paused}
    published = tasks().queued().filter(updated_at__lt=since)
    served = published.exclude(queue__in=sorted(paused)).order_by()
    return dict(served.values_list("queue").annotate(since=Min("updated_at")))


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """The health of one node as a probe reports it; ``fault`` is empty if the node is healthy."""

    node: Node
    state: str
    fault: str


def vitals(queryset: NodeQuerySet) -> list[NodeHealth]:
    """Judge the newest node of each kind and name. A process that was restarted has an older row
    too.
    """
    rows = queryset.using(database()).order_by("started_at")
    newest = {(node.kind, node.name): node for node in rows}
    now = database_now()
    running = {(node.kind, node.host) for node in newest.values() if node.stopped_at is None}
    # Skip a stopped node if a node of the same kind runs on its host. It may be the replacement
    # under another name, because names may contain a process id.
    judged = [
        node
        for _, node in sorted(newest.items())
        if node.stopped_at is None or (node.kind, node.host) not in running
    ]
    stalls = stalled([node for node in judged if node.stopped_at is None], now)

    def health(node: Node) -> NodeHealth:
        since = ago((now - node.last_seen_at).total_seconds())
        if node.declared_dead:
            return NodeHealth(node, "dead", f"it was declared dead, last seen {since} ago")
        if node.stopped_at is not None:
            return NodeHealth(node, "left", "it has left")
        if is_silent(node, now):
            return NodeHealth(node, "silent", f"it was last seen {since} ago")
        if node.pk in stalls:
            return NodeHealth(node, "stalled", stalls[node.pk])
        return NodeHealth(node, "draining" if node.draining else "alive", "")

    return [health(node) for node in judged]


# Reads the state of the whole installation: leader, nodes, queues, limits and connections. Writes
# nothing.
#
# Called by the admin and the command line.


_PER_CHILD, PER_SCHEDULER = 3, 8
_FORKING, _THREADS = "prefork", "thread"
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
    leader records them if ``contrib.notifications`` is installed. A schedule is late LATE after its
    fire time. Late and quarantined schedules are counted up to COUNTED.
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
    late_schedules: BoundedCount
    quarantined: BoundedCount
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


def overview(registered: Collection[str]) -> Overview:
    """Read the state; the number of statements does not depend on the number of tasks.

    ``registered`` contains the names of the tasks that this process has registered.
    """
    now = database_now()
    lease = SchedulerLease.objects.using(database()).filter(name=lease_name()).first()
    alive = list(Node.objects.using(database()).alive().order_by("kind", "name"))
    depths = queues.depths(now)
    return Overview(
        now=now,
        depths=depths,
        nodes=alive,
        stalled=stalled(alive, now),
        leader=next((node for node in alive if lease and node.pk == lease.holder), None),
        term=lease.term if lease else 0,
        led_until=lease.expires_at if lease else None,
        dead_letters=operator_actions.open_letters(),
        alerts=[alert for read in ALERT_SOURCES.values() for alert in read(ALERTS)],
        late_schedules=BoundedCount.of(
            recurring().active().filter(next_run_at__lt=now - LATE), COUNTED
        ),
        quarantined=BoundedCount.of(
            recurring().paused().filter(status_reason=QUARANTINED), COUNTED
        ),
        unknown=_unknown(registered),
        limits=operator_limits.limits_with_waiting_tasks(
            {depth.queue: depth.due for depth in depths if depth.paused_at is None}
        ),
        connections_needed=connections_needed(alive),
        connections_allowed=_connections_allowed(),
    )


def _unknown(registered: Collection[str]) -> dict[str, int]:
    numbers = Counter[str]()
    # Each has an index of its own.
    for waiting in (tasks().published_alone(), tasks().waiting_for_batch(), tasks().queued()):
        unregistered = waiting.exclude(name__in=list(registered)).order_by().values_list("name")
        numbers.update(dict(unregistered.annotate(number=Count("*"))))
    return dict(sorted(numbers.items()))


def connections_needed(all_nodes: Sequence[Node]) -> int:
    """Return the maximum number of database connections of these nodes.

    A prefork child has three: for gate and endings, for its heartbeat, and for the task function.
    Its parent has one, for the heartbeat of the node. Other pools have two for the heartbeats of
    node and runs, and two per thread: for gate and endings, where a pool of threads has at most
    PLACES, and for the task function. A scheduler has eight, two of them to receive notifications.
    """
    number = 0
    for node in all_nodes:
        if node.kind == NodeKind.SCHEDULER:
            number += PER_SCHEDULER
        elif node.pool == _FORKING:
            number += 1 + _PER_CHILD * node.concurrency
        else:
            is_limited = node.pool == _THREADS
            for_runs = min(node.concurrency, PLACES) if is_limited else node.concurrency
            number += 2 + for_runs + node.concurrency
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


_SHOWN_FIELDS = tuple(
    {field.name for field in fields(TaskSituation)}
    & {field.name for field in Task._meta.concrete_fields}
)
"""The fields of a task that its explanation uses as they are."""


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
    batch_message = None
    if task.in_batch:
        messages = BatchMessage.objects.using(database()).filter(queue=task.queue, name=task.name)
        due_at, count = messages.values_list("due_at", "publish_count").first() or (None, 0)
        batch_message = None if due_at is None else OutstandingMessage(due_at, count)
    lost = TaskExecutionLog.objects.using(database()).filter(task_id=task.pk, status=LogStatus.LOST)
    situation = TaskSituation(
        now=now,
        **{name: getattr(task, name) for name in _SHOWN_FIELDS},
        overdue=task.status == Status.RUNNING
        and task.expected_duration is not None
        and task.started_at is not None
        and now - task.started_at > task.expected_duration,
        held=task.is_waiting,
        limited=operator_limits.why(task),
        cancel_requested=task.cancel_requested_at is not None,
        batch_message=batch_message,
        alone_after_crash=has_batches and not task.in_batch and lost.exists(),
        unresolved=task.unresolved_dependencies_count,
        paused=pause is not None,
        paused_by=pause.paused_by if pause else "",
        pause_reason=pause.reason if pause else "",
        schedulers=sum(node.kind == NodeKind.SCHEDULER for node in alive),
        workers=sum(node.kind == NodeKind.WORKER and task.queue in node.queues for node in alive),
        no_worker_has_it=task.status in WITH_DUE_AT
        and config.limits_in_force().lacks_worker(task.name, task.queue),
        known=known,
    )
    return situation, led
