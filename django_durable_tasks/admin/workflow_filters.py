"""The filters of the list of workflow runs."""

from __future__ import annotations

from typing import Any

from django.db.models import F, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from django_durable_tasks import conf
from django_durable_tasks.admin import staff_tenants
from django_durable_tasks.admin.filters import LOOKED_AT, SHOWN, ScreenFilter
from django_durable_tasks.engine.db.clock import database_now
from django_durable_tasks.models import WorkflowRun


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
