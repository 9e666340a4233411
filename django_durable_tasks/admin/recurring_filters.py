"""The filters of recurring tasks and of the ledger: their choices cost at most one bounded
statement.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.admin.filters import ScreenFilter
from django_durable_tasks.engine.cluster.status import LATE
from django_durable_tasks.engine.db.clock import database_now
from django_durable_tasks.rules.recurring.policies import ENDED, MAX_RUNS, QUARANTINED


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
