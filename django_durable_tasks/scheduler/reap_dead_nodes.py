"""A worker died: how it is detected, and what happens to its tasks.

1. Every worker writes two things: its process increments ``Node.beats`` every NODE_HEARTBEAT
   seconds, and the process that runs tasks extends ``Task.lease_until`` of all its runs every
   HEARTBEAT seconds.
2. Every scheduler reads both once per NODE_HEARTBEAT (``jobs.Maintenance``) and counts in a
   ``HeartbeatMonitor`` how many consecutive reads saw the same value. Values are compared with
   earlier values only, never with a clock, so a clock that jumps marks no run as LOST. If a read
   fails, all counts restart at zero: a database outage affects every node and is no evidence about
   a single one.
3. The leader runs the three jobs of this module:

   * ``reap_dead_nodes``: a node whose counter did not change for NODE_TIMEOUT is dead. Its runs
     whose leases did not change either are marked LOST, and the node is marked ``declared_dead``.
   * ``mark_orphaned_runs``: runs that a node left when it stopped, and runs that renewed their
     lease for a while after their node was declared dead.
   * ``mark_lost_runs``: runs whose lease did not change for as long as it lasts, on any node.

4. A run marked LOST is an attempt that crashed. ``tasks/attempts.py`` retries the task or opens a
   dead letter, as configured. The task's epoch and run id change, so a worker that was only frozen
   cannot write a result any more.
5. Which runs of a dead node are charged with the crash, and when their tasks start again, is
   decided by ``states/machine.py``.

If only a child process of a prefork pool dies, its parent ends the run at once
(``tasks/attempts.py``). A dead scheduler needs no recovery of its own: tasks that it claimed and
did not publish have no message (``scheduler/republishing.py``), and its leadership expires
(``scheduler/leader.py``).
"""

from __future__ import annotations

import logging
import math
import uuid
from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db.models import Q

from django_durable_tasks import registry
from django_durable_tasks.choices import LogStatus
from django_durable_tasks.cluster import nodes
from django_durable_tasks.cluster.nodes import HeartbeatMonitor
from django_durable_tasks.conf import settings
from django_durable_tasks.models import Node, Task, TaskExecutionLog
from django_durable_tasks.states.machine import Crash, EndingKind, LostRun, Outcome, judged
from django_durable_tasks.store import tables
from django_durable_tasks.store.connections import dedicated_connection
from django_durable_tasks.tasks import attempts
from django_durable_tasks.texts import counted

logger = logging.getLogger("django_durable_tasks.scheduler")
LEASE_EXPIRED = "The lease of the run expired."
NODE_DEAD = "The worker died: its node missed its heartbeats."
_AFTER_STOP = timedelta(seconds=5)
"""A node that has stopped may still be writing the results of its last runs for this long."""


class Lease(NamedTuple):
    """The lease of a task's run: which run, on which node, until when."""

    run_id: uuid.UUID
    node: uuid.UUID | None
    until: datetime


def leases() -> dict[uuid.UUID, Lease]:
    """Return the leases of all RUNNING tasks by task id; one statement."""
    rows = tables.tasks().running().order_by().values_list("pk", "run_id", "node", "lease_until")
    return {pk: Lease(run_id, node, until) for pk, run_id, node, until in rows if run_id and until}


def reap_dead_nodes(now: datetime, monitor: HeartbeatMonitor) -> int:
    """Mark unrenewed runs of dead nodes LOST, then declare the nodes dead.

    A run that renews its lease is kept although the heartbeat of its node is late. The nodes are
    declared dead last, so that the next leader repeats all of it if this process dies on the way.
    """
    dead = monitor.silent(_reads_of_node_timeout())
    if not dead:
        return 0
    running = {task: lease for task, (lease, _) in monitor.unrenewed(0).items()}
    of_dead = {task: lease for task, lease in running.items() if lease.node in set(dead)}
    old = monitor.unrenewed(_reads_of_node_timeout())
    unrenewed = {task: lease for task, lease in of_dead.items() if task in old}
    with dedicated_connection():
        crashes = judge_crashes(of_dead, now)
        lost = _mark_in_batches(unrenewed, NODE_DEAD, monitor, crashes)
        nodes.declare_dead(dead)
    # A run that started just before its node died is found some seconds later than the others.
    here = {lease.run_id for lease in running.values()}
    kept = {run: crash for run, crash in monitor.judged.items() if run in here}
    monitor.judged = kept | {
        lease.run_id: crashes[task] for task, lease in of_dead.items() if task in crashes
    }
    monitor.restart(nodes=dead)
    logger.warning(
        "%s declared dead: %s marked LOST.",
        counted(
            len(dead),
            "node missed its heartbeats and was",
            "nodes missed their heartbeats and were",
        ),
        counted(lost, "run"),
    )
    return lost


def mark_orphaned_runs(now: datetime, monitor: HeartbeatMonitor) -> int:
    """Mark runs LOST whose node stopped without ending them, or was declared dead before."""
    unrenewed = monitor.unrenewed(1)
    if not unrenewed:
        return 0
    with dedicated_connection():
        reads_needed = {
            node: _reads_of_node_timeout() if declared_dead else 1
            for node, declared_dead in nodes_with_orphaned_runs(now).items()
        }
        orphaned = {
            task: lease
            for task, (lease, reads) in unrenewed.items()
            if lease.node in reads_needed and reads >= reads_needed[lease.node]
        }
        judged_before = {
            task: monitor.judged[lease.run_id]
            for task, lease in orphaned.items()
            if lease.run_id in monitor.judged
        }
        new = {task: lease for task, lease in orphaned.items() if task not in judged_before}
        crashes = judged_before | judge_crashes(new, now)
        return _mark_in_batches(orphaned, NODE_DEAD, monitor, crashes)


def mark_lost_runs(now: datetime, monitor: HeartbeatMonitor) -> int:
    """Mark runs LOST whose lease did not change in consecutive reads that span the lease.

    If this process does not know the task, and so not its ``lease=`` option, the lease must also
    have ended by the database's clock.
    """
    shortest_lease = min(2 * settings().HEARTBEAT, settings().LEASE)
    unrenewed = monitor.unrenewed(_reads_in(shortest_lease))
    if not unrenewed:
        return 0
    with dedicated_connection():
        options = tables.tasks().filter(pk__in=list(unrenewed)).values_list("pk", "name", "options")
        expired = dict[uuid.UUID, Lease]()
        for pk, name, overrides in options:
            lease, reads = unrenewed[pk]
            task = registry.find(name)
            configured = (overrides or {}).get("lease") or (task.options.lease if task else None)
            seconds = configured or settings().LEASE
            if reads >= _reads_in(seconds) and (configured or task or lease.until < now):
                expired[pk] = lease
        return _mark_in_batches(expired, LEASE_EXPIRED, monitor)


def mark_lost(
    leases: Mapping[uuid.UUID, Lease],
    reason: str,
    crashes: Mapping[uuid.UUID, Crash] | None = None,
) -> set[uuid.UUID]:
    """End the runs that still have exactly these leases; return the ids of their tasks.
    ``crashes``: how those that died together with others are judged.

    Skipped: a run that has renewed its lease since it was read, and a row that another transaction
    has locked, because that lock may be what prevents the renewal.
    """
    unchanged = [
        Q(pk=pk, run_id=lease.run_id, lease_until=lease.until) for pk, lease in leases.items()
    ]
    if not unchanged:
        return set()

    def lost(task: Task) -> Outcome:
        crash = (crashes or {}).get(task.pk, Crash(is_counted=True))
        return Outcome(
            kind=EndingKind.CRASHED,
            error=reason,
            error_type="Lost",
            is_shared=not crash.is_counted,
            delay=crash.delay,
        )

    runs = tables.tasks().filter(Q(*unchanged, _connector=Q.OR))
    return set(attempts.end_runs(runs, lost, limit=len(unchanged)))


def judge_crashes(leases: Mapping[uuid.UUID, Lease], now: datetime) -> dict[uuid.UUID, Crash]:
    """Return how the runs of each dead node are judged; two statements.

    A task's crashes before a replay are counted as uncounted ones, so that a task that ended
    processes before is the first to be suspected.
    """
    if not leases:
        return {}
    lost: dict[uuid.UUID, list[float]] = defaultdict(list)
    logs = TaskExecutionLog.objects.using(tables.database()).filter(
        task_id__in=list(leases), status=LogStatus.LOST
    )
    times = logs.order_by("pk").values_list("task_id", "started_at", "completed_at")
    for task_id, began, ended in times:
        lost[task_id].append((ended - (began or ended)).total_seconds())
    of_nodes: dict[uuid.UUID | None, list[LostRun]] = defaultdict(list)
    running = tables.tasks().running().filter(pk__in=list(leases)).order_by()
    rows = running.values_list("pk", "run_id", "started_at", "crashes")
    for task_id, run_id, began, crashes_before in rows:
        if run_id != leases[task_id].run_id:
            continue  # it ended meanwhile
        ages = lost[task_id]
        run = LostRun(
            task_id,
            (now - (began or now)).total_seconds(),
            counted=crashes_before,
            uncounted=max(0, len(ages) - crashes_before),
            last_age=ages[-1] if ages else 0.0,
        )
        of_nodes[leases[task_id].node].append(run)
    crashes: dict[uuid.UUID, Crash] = {}
    for runs in of_nodes.values():
        crashes |= judged(runs, nodes.timeout())
    return crashes


def nodes_with_orphaned_runs(now: datetime) -> dict[uuid.UUID, bool]:
    """Return nodes of this region with RUNNING tasks that were declared dead (True) or stopped at
    least five seconds ago (False).
    """
    gone = Q(declared_dead=True) | Q(stopped_at__lt=now - _AFTER_STOP)
    of_running = tables.tasks().running().order_by().values("node")
    orphaning = Node.objects.using(tables.database()).filter(
        gone, region=settings().REGION, stopped_at__isnull=False, pk__in=of_running
    )
    return dict(orphaning.values_list("pk", "declared_dead"))


def _mark_in_batches(
    leases: Mapping[uuid.UUID, Lease],
    reason: str,
    monitor: HeartbeatMonitor,
    crashes: Mapping[uuid.UUID, Crash] | None = None,
) -> int:
    """Mark these runs LOST; runs that were skipped are counted from zero again."""
    lost = set[uuid.UUID]()
    task_ids, size = list(leases), settings().BATCH_SIZE
    for first in range(0, len(task_ids), size):
        batch = {task_id: leases[task_id] for task_id in task_ids[first : first + size]}
        lost |= mark_lost(batch, reason, crashes)
    monitor.restart(leases=leases.keys() - lost)
    return len(lost)


def _reads_of_node_timeout() -> int:
    return _reads_in(nodes.timeout())


def _reads_in(seconds: float) -> int:
    """Return how many consecutive reads, one per NODE_HEARTBEAT, span this time."""
    return max(1, math.ceil(seconds / settings().NODE_HEARTBEAT))
