"""``/health``, ``/scheduler``, ``/queues`` and ``/metrics``; ``/tenants``, ``/key``, ``/quota`` and
``/audit``; and the pages of the API.
"""

from __future__ import annotations

import dataclasses
import time
import uuid
from datetime import datetime, timedelta
from typing import Any

from django.apps import apps
from django.db import Error
from django.db.models import Q
from django.http import HttpResponse
from django.template.loader import render_to_string
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from django_durable_tasks import conf, process_state, registry
from django_durable_tasks.audit import OBJECT_TYPES, about
from django_durable_tasks.choices import AuditSource, Status
from django_durable_tasks.cluster.queues import Depth, depths
from django_durable_tasks.cluster.status import overview
from django_durable_tasks.contrib.api import fields, problems, quotas, views
from django_durable_tasks.contrib.api.access import ApiScope
from django_durable_tasks.contrib.api.authentication import KEY_ACTOR, Caller
from django_durable_tasks.contrib.api.models import ApiKey
from django_durable_tasks.contrib.api.openapi import document_text
from django_durable_tasks.contrib.api.problems import Problem
from django_durable_tasks.contrib.api.serializers import Answer, list_of
from django_durable_tasks.contrib.api.tasks import ExecutionAnswer, OneTaskMixin
from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.limits.backpressure import heads, paused_queues
from django_durable_tasks.models import AuditEntry, NodeKind, SchedulerLease, Task, Tenant
from django_durable_tasks.operations import Operation, Target
from django_durable_tasks.option_values import checked_name
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.tasks import batches

_DAY = timedelta(hours=24)
# Seconds for which a process gives the same answer to /health.
_HEALTH_KEPT = 1.0
# Endings are counted up to this number, because a full count would read a whole day.
COUNTED = 100_000


class HealthViewSet(views.ApiViewSet):
    """Whether tasks start. It needs no key and reveals no names, for probes of load balancers."""

    singular = "Health"
    authentication_classes = ()

    @views.endpoint(statuses=(503,))
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
                leases = SchedulerLease.objects.using(conf.settings().DATABASE)
                led = leases.filter(expires_at__gt=now).exists()
                stopped = paused_queues()
                waiting = [
                    *heads().items(),
                    *((head.queue, head.due_at) for head in batches.batch_heads(now)),
                ]
                due = [at for queue, at in waiting if at <= now and queue not in stopped]
                age: float | None = (now - min(due)).total_seconds() if due else 0.0
                firing = led and (age or 0.0) <= conf.settings().OLDEST_DUE_MAX
                ready = True
            except Error:
                ready = led = firing = False
                age = None
            self._found = {"ready": ready, "leader": led, "oldest_due_age": age, "firing": firing}
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


class SchedulerViewSet(views.ApiViewSet):
    """The state of the installation, which all tenants share."""

    singular = "Scheduler"
    reads = ("node",)
    is_shared = True

    @views.endpoint(
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

    @views.endpoint(
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


class QueueViewSet(views.OperationsMixin):
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

    @views.endpoint(scope=ApiScope.QUEUES, answer=list_of(QueueAnswer))
    def list(self, request: Request) -> Response:
        """Return the queues that have open tasks, a worker or a pause, by name."""
        return self.whole([QueueAnswer.shown(depth) for depth in depths(database_now())])


class MetricsViewSet(views.ApiViewSet):
    """The metrics of all tenants."""

    singular = "Metrics"
    reads = ("node",)
    is_shared = True

    @views.endpoint(
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


# Tenants, with their keys and quotas.


class TenantAnswer(Answer):
    """A tenant. ``slug`` is the value of the header ``Durable-Tenant``."""

    class Meta:
        model = Tenant
        hidden = ()


class TenantViewSet(views.ApiViewSet):
    """The tenant of the key, or the tenants that a staff user may choose."""

    answer = TenantAnswer
    order = "slug"

    @views.endpoint(is_list=True)
    def list(self, request: Request) -> Response:
        """Return the tenants, by slug."""
        caller, rows = self.caller, Tenant.objects.using(conf.settings().DATABASE)
        if caller.user is None:
            rows = rows.filter(pk=caller.tenant.pk)
        elif caller.tenants is not None:
            rows = rows.filter(pk__in=caller.tenants)
        return self.page(rows)


class KeyAnswer(Answer):
    """The key that sends the request; of a staff user, only the name and the scopes are known."""

    scopes = serializers.ListField(child=fields.Text())
    prefix = fields.Text(allow_blank=True)
    created_at = fields.Instant(allow_null=True)

    class Meta:
        model = ApiKey
        hidden = ("identifier", "mode", "created_by", "revoked_by", "reason")


class KeyViewSet(views.ApiViewSet):
    """Who sends the request, and what it may do."""

    singular, plural = "Key", ""
    answer = KeyAnswer
    reads = ("tenant",)

    @views.endpoint()
    def list(self, request: Request) -> Response:
        """Return the scopes, the expiry and the last use of the own key."""
        caller = self.caller
        if caller.user is None:
            keys = ApiKey.objects.using(conf.settings().DATABASE)
            return Response(KeyAnswer.shown(keys.get(pk=request.auth.pk)))
        user = ApiKey(name=caller.name, scopes=sorted(caller.scopes))
        shown = KeyAnswer.shown(user, without=("prefix", "created_at"))
        return Response({**shown, "prefix": "", "created_at": None})


class QuotaAnswer(Answer):
    """A quota. ``limit`` is null without a limit, and ``used`` if it is not counted."""

    name = fields.Text()
    limit = fields.AnyJson()
    used = fields.Integer(allow_null=True)


class QuotaViewSet(views.ApiViewSet):
    """The quotas of the tenant. Ended tasks do not count."""

    singular = "Quota"
    reads = ("durable_tasks_api.tenantquota",)

    @views.endpoint(answer=list_of(QuotaAnswer))
    def list(self, request: Request) -> Response:
        """Return each quota with its limit and what is used of it."""
        rows = quotas.usage(self.caller.tenant)
        if self.rate is not None:
            spent = self.rate.rate.number - self.rate.left
            rows.append(quotas.QuotaUsage("requests", str(self.rate.rate), spent))
        return self.whole([QuotaAnswer.shown(row) for row in rows])


# Who changed what in the tenant.


# Characters of the column with the ids of objects.
_LONGEST = 250
OPERATOR = "operator"
"""Stands for the name of an operator, whatever it is."""
_NAMES = frozenset({"status_by", "updated_by", "set_by", "created_by"})
_REASONS = frozenset({"reason", "status_reason"})
_OF_STAFF = ("tenant.assign_staff", "tenant.unassign_staff")
_OWN = Q(source=AuditSource.API, actor__startswith=KEY_ACTOR)


class AuditAnswer(Answer):
    """A write: who changed what. ``object_id`` is empty if it changed several objects."""

    audit_id = fields.Integer(source="pk")
    object_type = fields.OneOf(choices=OBJECT_TYPES)
    object_ids = serializers.ListField(child=fields.Text())
    before = fields.SecretObject()
    after = fields.SecretObject()

    class Meta:
        model = AuditEntry
        hidden = ()


def _entry(about: str) -> fields.Text:
    return fields.Text(required=False, max_length=_LONGEST, help_text=f"Only entries {about}.")


class AuditViewSet(views.ApiViewSet):
    """The audit entries of the tenant."""

    plural = "AuditEntries"
    answer = AuditAnswer

    @views.endpoint(
        is_list=True,
        filters={
            "operation": _entry("of this operation, such as tasks.cancel"),
            "actor": _entry("of this key or user"),
            "object_id": _entry("about the object with this id or name"),
            "object_type": fields.OneOf(
                choices=OBJECT_TYPES,
                required=False,
                help_text="Only entries about objects of this type.",
            ),
        },
    )
    def list(self, request: Request) -> Response:
        """Return the entries that match the filters, the newest first."""
        filters, rows = self.query(), self.rows()
        if "object_id" in filters:
            rows = rows.filter(about(filters.pop("object_id"), self.tenant_id))
        if self.caller.user is None:
            # `actor` must not reveal the names of operators.
            rows = rows.exclude(operation__in=_OF_STAFF)
            actor = filters.pop("actor", None)
            if actor == OPERATOR:
                rows = rows.exclude(_OWN)
            elif actor is not None:
                rows = rows.filter(_OWN, actor=actor)
        return self.page(rows.filter(**filters))

    def show(self, row: AuditEntry, caller: Caller) -> dict[str, Any]:
        """Return an entry. For a key, the names, reasons and addresses of operators are left out,
        because operators write them for each other.
        """
        values = super().show(row, caller)
        is_own = row.source == AuditSource.API and row.actor.startswith(KEY_ACTOR)
        if caller.user is not None or is_own:
            return values
        hidden = {
            side: {
                name: OPERATOR if name in _NAMES and value else value
                for name, value in values[side].items()
                if name not in _REASONS
            }
            for side in ("before", "after")
        }
        return {**values, **hidden, "actor": OPERATOR, "reason": "", "address": None}


# The pages of the API: problem types, the OpenAPI document, and a page to try the API.


class ProblemViewSet(views.ApiViewSet):
    """The types of problems. They need no key: their addresses are in answers with status 401."""

    singular = "ProblemType"
    authentication_classes = ()
    lookup_url_kwarg = "code"
    lookup_value_converter = "slug"

    @views.endpoint()
    def retrieve(self, request: Request, code: str) -> Response:
        """Return the status, the title and the remedy."""
        kind = problems.TYPES.get(code)
        if kind is None:
            raise Problem(problems.NOT_FOUND, "There is no such type of problem.")
        return Response(dataclasses.asdict(kind))


class UnknownViewSet(views.ApiViewSet):
    """Every other address answers 404 to every method."""

    authentication_classes = ()
    schema: Any = None
    http_method_names = (*views.ApiViewSet.http_method_names, "put", "options", "trace")
    allowed_methods: Any = ()

    def http_method_not_allowed(self, request: Any, *args: Any, **kwargs: Any) -> Response:
        """Raise Problem."""
        raise Problem(problems.NOT_FOUND, "There is no such address.")


class SchemaViewSet(views.ApiViewSet):
    """The OpenAPI 3.1 document. It contains no data of a tenant and needs no key."""

    singular = "Schema"
    authentication_classes = ()

    @views.endpoint()
    def list(self, request: Request) -> Response:
        """Return the document."""
        root = views.address_of("schema-list").removesuffix("/schema")
        return Response(document_text(root, conf.settings().API_SESSIONS))


_HTML = "text/html"


class DocsViewSet(views.ApiViewSet):
    """A page on which a user enters a key and sends requests.

    Its scripts are files of ``drf_spectacular_sidecar`` and of this package, so that a strict
    content security policy allows them.
    """

    singular = "Docs"
    authentication_classes = ()

    @views.endpoint(media_types=(_HTML,))
    def list(self, request: Request) -> HttpResponse:
        """Return the page."""
        context = {"schema": views.address_of("schema-list")}
        page = render_to_string("django_durable_tasks/api/docs.html", context)
        return HttpResponse(page, content_type=f"{_HTML}; charset=utf-8")
