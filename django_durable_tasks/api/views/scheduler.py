"""``/health``, ``/scheduler``, ``/queues`` and ``/metrics``."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, ClassVar

from django.db import Error
from django.http import HttpResponse
from django.utils.module_loading import import_string
from rest_framework.request import Request
from rest_framework.response import Response

from django_durable_tasks import conf, process_state, registry
from django_durable_tasks.api import problems
from django_durable_tasks.api.authentication import Caller
from django_durable_tasks.api.endpoint import ApiEndpoint
from django_durable_tasks.api.fields import Body, Instant, Integer, Text
from django_durable_tasks.api.lists import shown_by
from django_durable_tasks.api.openapi import list_of
from django_durable_tasks.api.problems import Problem
from django_durable_tasks.api.views.object_operations import ObjectAction, Resource
from django_durable_tasks.api.views.tasks import ExecutionsEndpoint
from django_durable_tasks.choices import Status
from django_durable_tasks.cluster import queues
from django_durable_tasks.cluster.queues import Depth, depths
from django_durable_tasks.cluster.status import Overview, overview
from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.limits.backpressure import heads
from django_durable_tasks.models import Node, NodeKind, QueueControl, SchedulerLease, Task
from django_durable_tasks.option_values import checked_name
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.tasks import batches
from django_durable_tasks.tenants.values import ApiScope

# ``/health``, ``/scheduler/status`` and ``/scheduler/tasks/{id}/history``.


_DAY = timedelta(hours=24)
_HEALTH_KEPT = 1.0
"""Seconds for which a process gives the same answer to /health."""
COUNTED = 100_000
"""Endings are counted up to this number, because a full count would read a whole day."""


class NodeAnswer(Body):
    """A scheduler or a worker."""

    name = Text()
    kind = Text()
    host = Text()
    started_at = Instant()
    last_seen_at = Instant()
    last_scan_at = Instant(allow_null=True)
    concurrency = Integer()


class AlertAnswer(Body):
    """A condition of the installation that has not ended."""

    kind = Text()
    subject = Text(allow_blank=True)
    detail = Text(allow_blank=True)
    since = Instant()


class HealthEndpoint(ApiEndpoint):
    """Whether tasks start. It needs no key and reveals no names, for probes of load balancers."""

    authentication_classes = ()
    parameters: ClassVar = {"GET": frozenset()}
    may_be_unavailable = True

    def get(self, request: Request) -> Response:
        """Return liveness, readiness, and the age of the oldest task that is due.

        The status is 503 unless a leader is alive and no task is due for longer than
        OLDEST_DUE_MAX.
        """
        found = process_state.of(RecentHealth).read()
        return Response({"alive": True, **found}, status=200 if found["firing"] else 503)


class RecentHealth:
    """The last answer of this process. Anyone may ask, so that an answer is given for a second."""

    def __init__(self) -> None:
        self._found: dict[str, Any] = {}
        self._until = 0.0

    def forget(self) -> None:
        """Read again at the next request."""
        self._until = 0.0

    def read(self) -> dict[str, Any]:
        """Return the answer of the last second, or a new one."""
        if not self._found or time.monotonic() >= self._until:
            try:
                self._found = {"ready": True, **_firing()}
            except Error:
                self._found = {"ready": False, "leader": False, "oldest_due_age": None}
                self._found["firing"] = False
            self._until = time.monotonic() + _HEALTH_KEPT
        return self._found


def _firing() -> dict[str, Any]:
    now = database_now()
    led = SchedulerLease.objects.using(conf.settings().DATABASE).filter(expires_at__gt=now).exists()
    paused = QueueControl.objects.using(conf.settings().DATABASE).filter(paused_at__isnull=False)
    stopped = set(paused.values_list("name", flat=True))
    waiting = [*heads().items(), *((one.queue, one.due_at) for one in batches.batch_heads(now))]
    due = [at for queue, at in waiting if at <= now and queue not in stopped]
    age = (now - min(due)).total_seconds() if due else 0.0
    firing = led and age <= conf.settings().OLDEST_DUE_MAX
    return {"leader": led, "oldest_due_age": age, "firing": firing}


class SchedulerStatusEndpoint(ApiEndpoint):
    """The state of the installation, which all tenants share."""

    reads = ("node",)
    is_shared = True
    scopes: ClassVar = {"GET": ApiScope.QUEUES}

    def get(self, request: Request) -> Response:
        """Return nodes, shards, leader, last scan, endings of 24 hours, and running tasks."""
        found = overview(registry.names())
        return Response(
            {
                "now": Instant().to_representation(found.now),
                "leader": found.leader.name if found.leader and found.is_led else None,
                "term": found.term,
                "nodes": [_node(node, found) for node in found.nodes],
                "last_scan_at": _last_scan(found),
                "completed_24h": _ended(Status.SUCCESS, found.now),
                "failed_24h": _ended(Status.FAILED, found.now),
                "running": sum(depth.running for depth in found.depths),
                "open_dead_letters": found.dead_letters,
                "late_recurring_tasks": found.late_schedules,
                "alerts": [shown_by(AlertAnswer, alert) for alert in found.alerts],
            }
        )


def _node(node: Node, found: Overview) -> dict[str, Any]:
    return {
        **shown_by(NodeAnswer, node),
        "shards": list(node.shards or []),
        "silent": found.is_silent(node),
        "stalled": found.stalled.get(node.pk, ""),
    }


def _last_scan(found: Overview) -> Any:
    scans = [node.last_scan_at for node in found.alive(NodeKind.SCHEDULER) if node.last_scan_at]
    return Instant().to_representation(max(scans)) if scans else None


def _ended(status: Status, now: datetime) -> int:
    """Count tasks outside of workflows that ended in the last day, at most COUNTED, by an index."""
    rows = Task.objects.using(conf.settings().DATABASE).filter(
        status=status, completed_at__gt=now - _DAY, workflow__isnull=True
    )
    return int(rows.order_by().values("pk")[:COUNTED].count())


class HistoryEndpoint(ExecutionsEndpoint):
    """The attempts of a task that have ended, with their nodes, times and statuses."""


# ``/queues``: the queues of the installation, which all tenants share.


class QueueAnswer(Body):
    """A queue. ``pending`` and ``due`` are counted up to 10,000."""

    queue = Text()
    pending = Integer()
    due = Integer()
    queued = Integer()
    running = Integer()
    late = Integer()
    oldest_due_at = Instant(allow_null=True)
    paused_at = Instant(allow_null=True)
    paused_by = Text(allow_blank=True)
    reason = Text(allow_blank=True)
    workers = Integer()
    concurrency = Integer()


def queue_json(depth: Depth, _caller: Caller) -> dict[str, Any]:
    """Return a queue as JSON values."""
    return shown_by(QueueAnswer, depth)


def _find(_caller: Caller, name: str) -> Depth:
    """Return a queue that exists, or one without tasks and workers."""
    try:
        checked_name("queue", name)
    except InvalidOption:
        raise Problem(problems.NOT_FOUND, "There is no queue with this name.") from None
    return next(depth for depth in depths(database_now(), [name]) if depth.queue == name)


class QueuesEndpoint(ApiEndpoint):
    """All queues."""

    reads = ("queuecontrol",)
    is_shared = True
    scopes: ClassVar = {"GET": ApiScope.QUEUES}
    answers: ClassVar = {"GET": list_of(QueueAnswer)}

    def get(self, request: Request) -> Response:
        """Return the queues that have open tasks, a worker or a pause, by name."""
        rows = [queue_json(depth, self.caller) for depth in depths(database_now())]
        return Response({"data": rows, "next_cursor": None, "prev_cursor": None, "has_more": False})


RESOURCE = Resource(
    name="queue",
    reads="queuecontrol",
    is_shared=True,
    find=_find,
    show=queue_json,
    answer=QueueAnswer,
    version=lambda _depth: 0,
    subject=lambda depth: depth.queue,
)
ACTIONS = (
    ObjectAction(path="pause", scope=ApiScope.QUEUES, operations=(queues.pause,)),
    ObjectAction(
        path="resume",
        scope=ApiScope.QUEUES,
        operations=(queues.resume,),
        may_change_nothing=True,
    ),
)


# ``/metrics``: the metrics of the installation as text for Prometheus or OpenMetrics.


_WRITTEN = "django_durable_tasks.metrics.exposition.written"
"""Imported on use, because it needs the extra [metrics]."""


class MetricsEndpoint(ApiEndpoint):
    """The metrics of all tenants."""

    reads = ("node",)
    is_shared = True
    scopes: ClassVar = {"GET": ApiScope.METRICS}
    media_types = ("text/plain", "text/*", "application/openmetrics-text")

    def get(self, request: Request) -> HttpResponse:
        """Return the metrics; 404 unless METRICS is set."""
        if not conf.settings().METRICS:
            raise Problem(problems.NOT_FOUND, "The setting METRICS is off.")
        body, content_type = _written()(request.headers.get("Accept", ""))
        return HttpResponse(body, content_type=content_type)


def _written() -> Callable[[str], Any]:
    try:
        found: Callable[[str], Any] = import_string(_WRITTEN)
    except ImportError:
        text = "The server lacks the extra django-durable-tasks[metrics]."
        raise Problem(problems.NOT_FOUND, text) from None
    return found
