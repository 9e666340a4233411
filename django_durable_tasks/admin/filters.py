"""The filters and searches of the lists, and the tenants that a staff user sees."""

from __future__ import annotations

import functools
import operator
import uuid
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import F, Model, Q, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from django_durable_tasks import conf, ports, registry
from django_durable_tasks.cluster.status import LATE
from django_durable_tasks.models import DEFAULT_TENANT_ID, AuditEntry, Task, Tenant, WorkflowRun
from django_durable_tasks.schedules.misfires import ENDED, MAX_RUNS, QUARANTINED
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.task_values import first_uuid7_of

# The tenants that a staff user sees in the admin.


_FOUND = "_durable_tenants"


def tenants_of(request: HttpRequest) -> frozenset[int] | None:
    """Return the ids of the user's tenants, which are read once for a request; None for all."""
    if not hasattr(request, _FOUND):
        limit = ports.tenants_of
        setattr(request, _FOUND, None if limit is None else limit(request.user))
    ids: frozenset[int] | None = getattr(request, _FOUND)
    return ids


def is_limited(request: HttpRequest) -> bool:
    """Return whether the user sees only some tenants."""
    return tenants_of(request) is not None


def visible(request: HttpRequest, rows: QuerySet[Any], path: str = "tenant") -> QuerySet[Any]:
    """Return the rows of the user's tenants. ``path`` is the lookup of the tenant."""
    ids = tenants_of(request)
    return rows if ids is None else rows.filter(**{f"{path}__in": sorted(ids)})


def offered(request: HttpRequest) -> QuerySet[Tenant]:
    """Return the tenants that a form offers, by slug."""
    return visible(request, Tenant.objects.using(conf.settings().DATABASE), "pk").order_by("slug")


def is_default_only(tenants: QuerySet[Tenant]) -> bool:
    """Return whether a form needs no field for the tenant."""
    return [tenant.pk for tenant in tenants[:2]] == [DEFAULT_TENANT_ID]


# The filters and searches of the lists. The choices of a filter cost at most one bounded
# statement. Lists whose filters have no index bound them by ``readonly``.


SHOWN = 50
LOOKED_AT = 500
_KEYS = ("key", "unique_key", "idempotency_key")

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


class ValueFilter(admin.SimpleListFilter):
    """A filter that passes its value to ``narrow``; a value that no row can have finds nothing."""

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any] | None:
        value = self.value()
        if value is None:
            return None
        return queryset.none() if "\x00" in value else self.narrow(queryset, value)

    def narrow(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
        """Return the rows of this value."""
        raise NotImplementedError


class AmongNewestFilter(ValueFilter):
    """A filter without an index: it reads the newest ``looked_at`` rows only, unless a parameter of
    ``of_one`` leaves few rows. The primary keys of the table are numbers.
    """

    looked_at = 200_000
    of_one: tuple[str, ...] = ()

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any] | None:
        narrowed = super().queryset(request, queryset)
        if narrowed is None or any(name in request.GET for name in self.of_one):
            return narrowed
        rows = narrowed.model._default_manager.using(narrowed.db).order_by("-pk")
        newest = rows.values_list("pk", flat=True).first() or 0
        return narrowed.filter(pk__gt=newest - self.looked_at)


class ChoiceFilter(ValueFilter):
    """A filter by conditions: each value has a title, and a function that narrows the rows."""

    conditions: ClassVar[Mapping[str, tuple[Any, Callable[[Any], Any]]]]

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [(value, title) for value, (title, _narrow) in self.conditions.items()]

    def narrow(self, rows: Any, value: str) -> Any:
        """Return the rows that match this condition."""
        _title, narrow = self.conditions.get(value, ("", lambda rows: rows.none()))
        return narrow(rows)


class _RecentValues(ValueFilter):
    """Offers the values of the newest rows, because reading all values would scan the table."""

    field = ""
    path = ""
    model: type[Model] = Task

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        rows = self.model._default_manager.using(conf.settings().DATABASE)
        newest = visible(request, rows).order_by("-pk")
        values = set(newest.values_list(self.field, flat=True)[:LOOKED_AT])
        chosen = self.used_parameters.get(self.parameter_name or "")
        offered = sorted(values - {""})[:SHOWN]
        if isinstance(chosen, str) and chosen not in offered:
            offered.append(chosen)
        return [(value, value) for value in offered]

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


class TenantFilter(ValueFilter):
    """Filter by tenant; with many tenants, the list of tenants links here."""

    title = _("tenant")
    parameter_name = "tenant"
    path = "tenant"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        tenants = offered(request)[: SHOWN + 1]
        return [(str(tenant.pk), str(tenant)) for tenant in tenants]

    def has_output(self) -> bool:
        """Hide the filter if there is one tenant, or more than fit; a selected tenant always
        counts.
        """
        return self.value() is not None or 1 < len(self.lookup_choices) <= SHOWN

    def narrow(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
        """Return the rows of this tenant."""
        is_id = value.isdecimal() and len(value) < 19
        return rows.filter(**{self.path: int(value)}) if is_id else rows.none()


class ReasonFilter(ValueFilter):
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


class CreatedFilter(ValueFilter):
    """Filter by age. Ids sort by creation time, so this reads one range of the primary key."""

    title = _("created within the last")
    parameter_name = "created"
    spans: ClassVar = {
        "hour": (_("hour"), timedelta(hours=1)),
        "day": (_("day"), timedelta(days=1)),
        "week": (_("week"), timedelta(days=7)),
        "month": (_("month"), timedelta(days=30)),
    }

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [(value, title) for value, (title, _span) in self.spans.items()]

    def narrow(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
        """Return the rows of this age."""
        if value not in self.spans:
            return rows.none()
        return rows.filter(self.first(database_now() - self.spans[value][1]))

    def first(self, at: datetime) -> Q:
        """Return the condition for rows that were created at this instant or later."""
        return Q(pk__gte=first_uuid7_of(int(at.timestamp() * 1_000)))


class ConditionFilter(ChoiceFilter):
    """Filter by conditions that are not statuses."""

    title = _("condition")
    parameter_name = "condition"
    conditions: ClassVar = {
        "due": (_("due, not started"), lambda tasks: tasks.due(database_now())),
        "retrying": (_("retrying"), lambda tasks: tasks.retrying()),
        "unanswered": (_("republished"), lambda tasks: tasks.queued().filter(publish_count__gt=1)),
        "overdue": (_("overdue"), lambda tasks: tasks.overdue(database_now())),
        "silent": (_("lease expired"), lambda tasks: tasks.lease_over(database_now())),
        "stopping": (
            _("stop requested"),
            lambda tasks: tasks.running().filter(cancel_requested_at__isnull=False),
        ),
    }


class OpenFilter(ValueFilter):
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


class WorkflowNameFilter(_RecentValues):
    """Filter by the name of the workflow."""

    title = _("name")
    parameter_name = field = "name"
    model = WorkflowRun


class ActorFilter(_RecentValues):
    """Filter by who acted."""

    title = _("actor")
    parameter_name = field = "actor"
    model = AuditEntry


class RunConditionFilter(ConditionFilter):
    """Filter by conditions that are not statuses."""

    conditions: ClassVar = {
        "open": (_("not ended"), lambda runs: runs.open()),
        "late": (
            _("late: past its deadline"),
            lambda runs: runs.open().filter(deadline_at__lte=database_now()),
        ),
        "stopping": (
            _("stop requested"),
            lambda runs: runs.open().filter(cancel_requested_at__isnull=False),
        ),
        "whole": (_("not part of another run"), lambda runs: runs.filter(root=F("pk"))),
        "part": (_("part of another run"), lambda runs: runs.exclude(root=F("pk"))),
    }


class ScheduleConditionFilter(ConditionFilter):
    """Filter by conditions that are not statuses."""

    conditions: ClassVar = {
        "late": (
            _("late"),
            lambda rows: rows.active().filter(next_run_at__lt=database_now() - LATE),
        ),
        "soon": (
            _("fires within the hour"),
            lambda rows: rows.active().filter(next_run_at__lt=database_now() + timedelta(hours=1)),
        ),
        "quarantined": (_("quarantined"), lambda rows: rows.filter(status_reason=QUARANTINED)),
        "snoozed": (
            _("paused until a time"),
            lambda rows: rows.paused().filter(paused_until__isnull=False),
        ),
        "ended": (
            _("ended by itself"),
            lambda rows: rows.filter(status_reason__in=(MAX_RUNS, ENDED)),
        ),
        "undeclared": (
            _("no longer declared"),
            lambda rows: rows.filter(undeclared_at__isnull=False),
        ),
    }


class SourceFilter(ValueFilter):
    """Filter by the source of the declaration."""

    title = _("declared by")
    parameter_name = "source"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        words = ("code", "settings", "beat", "api")
        return [*((word, word) for word in words), ("hand", _("by operators"))]

    def narrow(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
        """Return the rows of this source."""
        return rows.filter(Q(source="") if value == "hand" else Q(source=value[:20]))
