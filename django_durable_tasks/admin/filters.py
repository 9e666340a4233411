"""The filters and searches of the lists. The choices of a filter cost at most one bounded
statement.
"""

from __future__ import annotations

import functools
import operator
import uuid
from datetime import datetime, timedelta
from typing import Any

from django.contrib import admin
from django.db.models import F, Q, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from django_durable_tasks import conf, registry
from django_durable_tasks.admin import staff_tenants
from django_durable_tasks.cluster.status import LATE
from django_durable_tasks.models import Task, Tenant, WorkflowRun
from django_durable_tasks.models.tasks import TaskQuerySet, first_uuid7_of
from django_durable_tasks.schedules.misfires import ENDED, MAX_RUNS, QUARANTINED
from django_durable_tasks.store.clock import database_now

# The filters and searches of the lists. The choices of a filter cost at most one bounded
# statement. Lists whose filters have no index bound them by ``readonly``.


SHOWN = 50
LOOKED_AT = 500
_KEYS = ("key", "unique_key", "idempotency_key")
_DAY = 86_400
_SPANS = {"hour": 3_600, "day": _DAY, "week": 7 * _DAY, "month": 30 * _DAY}

REASONS_OF_FAILURE = ("EXHAUSTED", "GAVE_UP", "REJECTED", "CRASHED", "ORPHANED")
REASONS = (
    *REASONS_OF_FAILURE,
    "CANCELLED",
    "REPLACED",
    "EXPIRED",
    "IGNORED",
    "REVOKED",
    "completed by",
)


def search_by_key(term: str, prefix: str = "") -> Q | None:
    """Return the condition for an id, a Celery id or a whole key, which indexes serve; empty for an
    empty search, None if no task has this key. ``prefix``: the path to the task, with its ``__``.

    Keys are looked up by their indexes, one kind after the other.
    """
    term = term.strip()
    if not term or key_in(term) is not None:
        return by_id_or(term, prefix=prefix)
    tasks = Task.objects.using(conf.settings().DATABASE).order_by()
    for key in _KEYS:
        lookups: dict[str, Any] = {key: term}
        if key == "idempotency_key":  # its index begins with the tenant
            lookups["tenant__in"] = Tenant.objects.using(tasks.db).values("pk")
        if tasks.filter(**lookups).exists():
            return Q(**{f"{prefix}{name}": value for name, value in lookups.items()})
    return None


def names_like(term: str) -> list[str]:
    """Return the names of durable tasks that contain the term: of those registered in this process
    and those of the newest tasks, never of every row.
    """
    newest = (
        Task.objects.using(conf.settings().DATABASE)
        .order_by("-pk")
        .values_list("name", flat=True)[:LOOKED_AT]
    )
    known, term = registry.names() | set(newest), term.strip().lower()
    return sorted(name for name in known if term in name.lower())


def by_id_or(term: str, *lookups: str, prefix: str = "") -> Q:
    """Return the condition for a whole id, otherwise for any of these lookups; empty for an empty
    search.
    """
    term = term.strip()
    if not term:
        return Q()
    key = key_in(term)
    if key is not None:
        return Q(**{f"{prefix}pk": key})
    return functools.reduce(operator.or_, (Q(**{lookup: term}) for lookup in lookups))


def key_in(term: str) -> uuid.UUID | None:
    """Return the id in a search, that of a task also from one of its Celery ids; None if it is not
    an id.
    """
    try:
        return uuid.UUID(term.strip().partition(".")[0])
    except ValueError:
        return None


class ScreenFilter(admin.SimpleListFilter):
    """A filter that passes its value to ``narrow``; a value that no row can have finds nothing."""

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any] | None:
        value = self.value()
        if value is None:
            return None
        return queryset.none() if "\x00" in value else self.narrow(queryset, value)

    def narrow(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
        """Return the rows of this value."""
        raise NotImplementedError


class _RecentValues(ScreenFilter):
    """Offers the values of the newest rows, because reading all values would scan the table."""

    field = ""
    path = ""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        rows = Task.objects.using(conf.settings().DATABASE)
        newest = staff_tenants.visible(request, rows).order_by("-pk")
        values = set(newest.values_list(self.field, flat=True)[:LOOKED_AT])
        chosen = self.used_parameters.get(self.parameter_name or "")
        if isinstance(chosen, str):
            values.add(chosen)
        return [(value, value) for value in sorted(values)][:SHOWN]

    def has_output(self) -> bool:
        """Show the filter also if it has one choice only."""
        return bool(self.lookup_choices)

    def narrow(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
        """Return the rows of this value."""
        return rows.filter(**{self.path or self.field: value})


class NameFilter(_RecentValues):
    """Filter by the name of the durable task."""

    title = _("name")
    parameter_name = field = "name"


class QueueFilter(_RecentValues):
    """Filter by queue."""

    title = _("queue")
    parameter_name = field = "queue"


class NameOfTaskFilter(NameFilter):
    """Filter by the name of the task to which a row belongs."""

    path = "task__name"


class QueueOfTaskFilter(QueueFilter):
    """Filter by the queue of the task to which a row belongs."""

    path = "task__queue"


class TenantFilter(ScreenFilter):
    """Filter by tenant; with many tenants, the list of tenants links here."""

    title = _("tenant")
    parameter_name = "tenant"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        found = staff_tenants.offered(request)[: SHOWN + 1]
        return [(str(tenant.pk), str(tenant)) for tenant in found]

    def has_output(self) -> bool:
        """Hide the filter if there is one tenant, or more than fit; a selected tenant always
        counts.
        """
        return self.value() is not None or 1 < len(self.lookup_choices) <= SHOWN

    def narrow(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
        """Return the rows of this tenant."""
        return (
            rows.filter(tenant_id=int(value))
            if value.isdecimal() and len(value) < 19
            else rows.none()
        )


class ReasonFilter(ScreenFilter):
    """Filter by the reason of an ending."""

    title = _("reason")
    parameter_name = "reason"
    reasons: tuple[str, ...] = REASONS

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(reason, reason) for reason in self.reasons]

    def narrow(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
        """Return the rows whose reason begins with this word; the user name follows it."""
        return rows.filter(reason__startswith=value)


class ReasonOfFailureFilter(ReasonFilter):
    """Filter by the reason of a dead letter."""

    reasons = REASONS_OF_FAILURE


class CreatedFilter(ScreenFilter):
    """Filter by age. Ids sort by creation time, so this reads one range of the primary key."""

    title = _("created within the last")
    parameter_name = "created"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("hour", _("hour")), ("day", _("day")), ("week", _("week")), ("month", _("month"))]

    def narrow(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
        """Return the rows of this age."""
        if value not in _SPANS:
            return rows.none()
        first = database_now() - timedelta(seconds=_SPANS[value])
        return rows.filter(self.first(first))

    def first(self, at: datetime) -> Q:
        """Return the condition for rows that were created at this instant or later."""
        return Q(pk__gte=first_uuid7_of(int(at.timestamp() * 1_000)))


class ConditionFilter(ScreenFilter):
    """Filter by conditions that are not statuses."""

    title = _("condition")
    parameter_name = "condition"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [
            ("due", _("due, not started")),
            ("retrying", _("retrying")),
            ("unanswered", _("republished")),
            ("overdue", _("overdue")),
            ("silent", _("lease expired")),
            ("stopping", _("stop requested")),
        ]

    def narrow(self, rows: Any, value: str) -> TaskQuerySet:
        """Return the rows that match this condition."""
        found: TaskQuerySet = {
            "due": lambda: rows.due(database_now()),
            "retrying": rows.retrying,
            "unanswered": lambda: rows.queued().filter(publish_count__gt=1),
            "overdue": lambda: rows.overdue(database_now()),
            "silent": lambda: rows.lease_over(database_now()),
            "stopping": lambda: rows.running().filter(cancel_requested_at__isnull=False),
        }.get(value, rows.none)()
        return found


class OpenFilter(ScreenFilter):
    """Filter by whether a dead letter is closed; by default the open ones are shown."""

    title = _("case")
    parameter_name = "case"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("all", _("All")), ("REPLAYED", _("replayed")), ("DISCARDED", _("discarded"))]

    def choices(self, changelist: Any) -> Any:
        """Offer the open ones first, as the default."""
        for value, title in ((None, _("open")), *self.lookup_choices):
            yield {
                "selected": self.value() == value,
                "query_string": changelist.get_query_string(
                    {self.parameter_name: value} if value else {},
                    [] if value else [self.parameter_name],
                ),
                "display": title,
            }

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if value is None:
            return queryset.filter(Q(open_task__isnull=False))
        return queryset if value == "all" else queryset.filter(resolution=value[:9])


class WorkflowNameFilter(ScreenFilter):
    """Filter by the name of the workflow; offers the names of the newest runs."""

    title = _("name")
    parameter_name = "name"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        rows = WorkflowRun.objects.using(conf.settings().DATABASE)
        newest = staff_tenants.visible(request, rows).order_by("-pk")
        names = set(newest.values_list("name", flat=True)[:LOOKED_AT])
        chosen = self.used_parameters.get("name")
        return [
            (name, name)
            for name in sorted(names | ({chosen} if isinstance(chosen, str) else set()))
        ][:SHOWN]

    def has_output(self) -> bool:
        """Show the filter also if it has one choice only."""
        return bool(self.lookup_choices)

    def narrow(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
        """Return the runs of this workflow."""
        return rows.filter(name=value)


class RunConditionFilter(ScreenFilter):
    """Filter by conditions that are not statuses."""

    title = _("condition")
    parameter_name = "condition"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [
            ("open", _("not ended")),
            ("late", _("late: past its deadline")),
            ("stopping", _("stop requested")),
            ("whole", _("not part of another run")),
            ("part", _("part of another run")),
        ]

    def narrow(self, rows: Any, value: str) -> QuerySet[Any]:
        """Return the runs that match this condition."""
        found: dict[str, Any] = {
            "open": rows.open,
            "late": lambda: rows.open().filter(deadline_at__lte=database_now()),
            "stopping": lambda: rows.open().filter(cancel_requested_at__isnull=False),
            "whole": lambda: rows.filter(root=F("pk")),
            "part": lambda: rows.exclude(root=F("pk")),
        }
        narrowed: QuerySet[Any] = found.get(value, rows.none)()
        return narrowed


# The filters of recurring tasks and of the ledger: their choices cost at most one bounded
# statement.


class ScheduleConditionFilter(ScreenFilter):
    """Filter by conditions that are not statuses."""

    title = _("condition")
    parameter_name = "condition"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [
            ("late", _("late")),
            ("soon", _("fires within the hour")),
            ("quarantined", _("quarantined")),
            ("snoozed", _("paused until a time")),
            ("ended", _("ended by itself")),
            ("undeclared", _("no longer declared")),
        ]

    def narrow(self, rows: Any, value: str) -> QuerySet[Any]:
        """Return the rows that match this condition."""
        found: QuerySet[Any] = {
            "late": lambda: rows.active().filter(next_run_at__lt=database_now() - LATE),
            "soon": lambda: rows.active().filter(
                next_run_at__lt=database_now() + timedelta(hours=1)
            ),
            "quarantined": lambda: rows.filter(status_reason=QUARANTINED),
            "snoozed": lambda: rows.paused().filter(paused_until__isnull=False),
            "ended": lambda: rows.filter(status_reason__in=(MAX_RUNS, ENDED)),
            "undeclared": lambda: rows.filter(undeclared_at__isnull=False),
        }.get(value, rows.none)()
        return found


class SourceFilter(ScreenFilter):
    """Filter by the source of the declaration."""

    title = _("declared by")
    parameter_name = "source"
    _WORDS = ("code", "settings", "beat", "api")

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [*((word, word) for word in self._WORDS), ("hand", _("by operators"))]

    def narrow(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
        """Return the rows of this source."""
        return rows.filter(Q(source="") if value == "hand" else Q(source=value[:20]))
