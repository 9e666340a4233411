"""``/health``, ``/scheduler``, ``/queues``, ``/metrics`` and the pages of the API."""

from __future__ import annotations

import dataclasses
import time
import uuid
from datetime import datetime, timedelta
from typing import Any

from django.apps import apps
from django.db import Error
from django.http import HttpResponse
from django.template.loader import render_to_string
from rest_framework.request import Request
from rest_framework.response import Response

from django_durable_tasks import conf, process_state, registry
from django_durable_tasks.choices import Status
from django_durable_tasks.cluster.queues import Depth, depths
from django_durable_tasks.cluster.status import overview
from django_durable_tasks.contrib.api import fields, problems
from django_durable_tasks.contrib.api.access import ApiScope
from django_durable_tasks.contrib.api.openapi import document_text
from django_durable_tasks.contrib.api.operations import OperationsMixin
from django_durable_tasks.contrib.api.problems import Problem
from django_durable_tasks.contrib.api.serializers import Answer, list_of
from django_durable_tasks.contrib.api.tasks import ExecutionAnswer, OneTaskMixin
from django_durable_tasks.contrib.api.views import ApiViewSet, address_of, endpoint
from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.limits.backpressure import heads, paused_queues
from django_durable_tasks.models import NodeKind, SchedulerLease, Task
from django_durable_tasks.operations import Operation, Target
from django_durable_tasks.option_values import checked_name
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.tasks import batches

_DAY = timedelta(hours=24)
# Seconds for which a process gives the same answer to /health.
_HEALTH_KEPT = 1.0
# Endings are counted up to this number, because a full count would read a whole day.
COUNTED = 100_000


class HealthViewSet(ApiViewSet):
    """Whether tasks start. It needs no key and reveals no names, for probes of load balancers."""

    singular = "Health"
    authentication_classes = ()

    @endpoint(statuses=(503,))
    def list(self, request: Request) -> Response:
        """Return liveness, readiness, and the age of the oldest task that is due.

        The status is 503 unless a leader is alive and no task is due for longer than
        OLDEST_DUE_MAX.
        """
        health = process_state.of(RecentHealth).read()
        return Response({"alive": True, **health}, status=200 if health["firing"] else 503)


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
                now = database_now()
                led = (
                    SchedulerLease.objects.using(conf.settings().DATABASE)
                    .filter(expires_at__gt=now)
                    .exists()
                )
                stopped = paused_queues()
                waiting = [
                    *heads().items(),
                    *((head.queue, head.due_at) for head in batches.batch_heads(now)),
                ]
                due = [at for queue, at in waiting if at <= now and queue not in stopped]
                age = (now - min(due)).total_seconds() if due else 0.0
                firing = led and age <= conf.settings().OLDEST_DUE_MAX
                self._found = {
                    "ready": True,
                    "leader": led,
                    "oldest_due_age": age,
                    "firing": firing,
                }
            except Error:
                self._found = {"ready": False, "leader": False, "oldest_due_age": None}
                self._found["firing"] = False
            self._until = time.monotonic() + _HEALTH_KEPT
        return self._found


class NodeAnswer(Answer):
    """A scheduler or a worker."""

    name = fields.Text()
    kind = fields.Text()
    host = fields.Text()
    started_at = fields.Instant()
    last_seen_at = fields.Instant()
    last_scan_at = fields.Instant(allow_null=True)
    concurrency = fields.Integer()


class AlertAnswer(Answer):
    """A condition of the installation that has not ended."""

    id = fields.Integer(source="pk")
    kind = fields.Text()
    subject = fields.Text(allow_blank=True)
    detail = fields.Text(allow_blank=True)
    since = fields.Instant()


class SchedulerViewSet(ApiViewSet):
    """The state of the installation, which all tenants share."""

    singular = "Scheduler"
    reads = ("node",)
    is_shared = True

    @endpoint(
        "status",
        detail=False,
        scope=ApiScope.QUEUES,
    )
    def status(self, request: Request) -> Response:
        """Return nodes, shards, leader, last scan, endings of 24 hours, and running tasks.

        Endings are counted up to 100,000, late recurring tasks up to 1,000.
        """
        facts = overview(registry.names())
        scans = [node.last_scan_at for node in facts.alive(NodeKind.SCHEDULER) if node.last_scan_at]
        return Response(
            {
                "now": fields.Instant().to_representation(facts.now),
                "leader": facts.leader.name if facts.leader and facts.is_led else None,
                "term": facts.term,
                "nodes": [
                    {
                        **NodeAnswer.shown(node),
                        "shards": list(node.shards or []),
                        "silent": facts.is_silent(node),
                        "stalled": facts.stalled.get(node.pk, ""),
                    }
                    for node in facts.nodes
                ],
                "last_scan_at": fields.Instant().to_representation(max(scans)) if scans else None,
                "completed_24h": _ended(Status.SUCCESS, facts.now),
                "failed_24h": _ended(Status.FAILED, facts.now),
                "running": sum(depth.running for depth in facts.depths),
                "open_dead_letters": facts.dead_letters,
                "late_recurring_tasks": facts.late_schedules,
                "alerts": [AlertAnswer.shown(alert) for alert in facts.alerts],
            }
        )


def _ended(status: Status, now: datetime) -> int:
    """Count tasks outside of workflows that ended in the last day, at most COUNTED, by an index."""
    rows = Task.objects.using(conf.settings().DATABASE).filter(
        status=status, completed_at__gt=now - _DAY, workflow__isnull=True
    )
    return int(rows.order_by().values("pk")[:COUNTED].count())


class HistoryViewSet(OneTaskMixin):
    """The attempts of a task."""

    @endpoint(
        "history",
        reads=("task", "taskexecutionlog"),
        answer=list_of(ExecutionAnswer),
        is_list=True,
    )
    def history(self, request: Request, task_id: uuid.UUID) -> Response:
        """Return the attempts that have ended, with their nodes, the newest first."""
        return self.page_of_task(ExecutionAnswer)


class QueueAnswer(Answer):
    """A queue. ``pending`` and ``due`` are counted up to 10,000."""

    queue = fields.Text()
    pending = fields.Integer()
    due = fields.Integer()
    queued = fields.Integer()
    running = fields.Integer()
    late = fields.Integer()
    oldest_due_at = fields.Instant(allow_null=True)
    paused_at = fields.Instant(allow_null=True)
    paused_by = fields.Text(allow_blank=True)
    reason = fields.Text(allow_blank=True)
    workers = fields.Integer()
    concurrency = fields.Integer()


class QueueViewSet(OperationsMixin):
    """The queues of the installation, which all tenants share."""

    singular, plural = "Queue", "Queues"
    answer = QueueAnswer
    reads = ("queuecontrol",)
    is_shared = True
    lookup_url_kwarg = "queue"
    lookup_value_converter = "str"
    targets = (Target.QUEUE,)
    operates = ApiScope.QUEUES
    may_change_nothing = True

    def find(self, *, lock: bool = False) -> Depth:
        """Return a queue that exists, or one without tasks and workers."""
        name = self.kwargs["queue"]
        try:
            checked_name("queue", name)
        except InvalidOption:
            raise Problem(problems.NOT_FOUND, "There is no queue with this name.") from None
        return next(depth for depth in depths(database_now(), [name]) if depth.queue == name)

    def version_of(self, row: Depth) -> int:
        """Return the same version always: the digest distinguishes answers."""
        return 0

    def subject(self, operation: Operation, row: Depth) -> str:
        """Return the name."""
        return row.queue

    @endpoint(scope=ApiScope.QUEUES, answer=list_of(QueueAnswer))
    def list(self, request: Request) -> Response:
        """Return the queues that have open tasks, a worker or a pause, by name."""
        return self.whole([QueueAnswer.shown(depth) for depth in depths(database_now())])


class MetricsViewSet(ApiViewSet):
    """The metrics of all tenants."""

    singular = "Metrics"
    reads = ("node",)
    is_shared = True

    @endpoint(
        scope=ApiScope.METRICS,
        media_types=("text/plain", "text/*", "application/openmetrics-text"),
    )
    def list(self, request: Request) -> HttpResponse:
        """Return the metrics as text for Prometheus or OpenMetrics; 404 unless
        `django_durable_tasks.contrib.metrics` is installed.
        """
        try:
            metrics: Any = apps.get_app_config("durable_tasks_metrics")
            body, content_type = metrics.text(request.headers.get("Accept", ""))
        except LookupError:
            text = "The server lacks django_durable_tasks.contrib.metrics in INSTALLED_APPS."
            raise Problem(problems.NOT_FOUND, text) from None
        except ImportError:
            text = "The server lacks the extra django-durable-tasks[metrics]."
            raise Problem(problems.NOT_FOUND, text) from None
        return HttpResponse(body, content_type=content_type)


# The pages of the API: problem types, the OpenAPI document, and a page to try the API.


class ProblemViewSet(ApiViewSet):
    """The types of problems. They need no key: their addresses are in answers with status 401."""

    singular = "ProblemType"
    authentication_classes = ()
    lookup_url_kwarg = "code"
    lookup_value_converter = "slug"

    @endpoint()
    def retrieve(self, request: Request, code: str) -> Response:
        """Return the status, the title and the remedy."""
        kind = problems.TYPES.get(code)
        if kind is None:
            raise Problem(problems.NOT_FOUND, "There is no such type of problem.")
        return Response(dataclasses.asdict(kind))


class UnknownViewSet(ApiViewSet):
    """Every other address answers 404 to every method."""

    authentication_classes = ()
    schema: Any = None
    http_method_names = (*ApiViewSet.http_method_names, "put", "options", "trace")
    allowed_methods: Any = ()

    def http_method_not_allowed(self, request: Any, *args: Any, **kwargs: Any) -> Response:
        """Raise Problem."""
        raise Problem(problems.NOT_FOUND, "There is no such address.")


class SchemaViewSet(ApiViewSet):
    """The OpenAPI 3.1 document. It contains no data of a tenant and needs no key."""

    singular = "Schema"
    authentication_classes = ()

    @endpoint()
    def list(self, request: Request) -> Response:
        """Return the document."""
        return Response(document_text(address_of("schema-list").removesuffix("/schema")))


_HTML = "text/html"


class DocsViewSet(ApiViewSet):
    """A page on which a user enters a key and sends requests.

    Its scripts are files of ``drf_spectacular_sidecar`` and of this package, so that a strict
    content security policy allows them.
    """

    singular = "Docs"
    authentication_classes = ()

    @endpoint(media_types=(_HTML,))
    def list(self, request: Request) -> HttpResponse:
        """Return the page."""
        context = {"schema": address_of("schema-list")}
        page = render_to_string("django_durable_tasks/api/docs.html", context)
        return HttpResponse(page, content_type=f"{_HTML}; charset=utf-8")
