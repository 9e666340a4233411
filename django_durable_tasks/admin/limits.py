"""The admin of limits that operators set, which replace those of code and settings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponseRedirect
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from django_durable_tasks import conf, registry
from django_durable_tasks.admin.actions import who
from django_durable_tasks.admin.edit_conflicts import OPENED, EditModelForm
from django_durable_tasks.admin.queues import declared
from django_durable_tasks.admin.readonly import ScreenAdmin
from django_durable_tasks.celery import inspect
from django_durable_tasks.engine.cluster import queues
from django_durable_tasks.engine.db.clock import database_now
from django_durable_tasks.engine.limits import operator_limits
from django_durable_tasks.exceptions import DurableTasksError
from django_durable_tasks.models import Limit, Tenant
from django_durable_tasks.operations.limits import REMOVE, SET


class LimitForm(EditModelForm):
    """A limit; each ``set_limit`` changes the time at which it was set."""

    def version_of(self, row: Any) -> object:
        """Return when the limit was set."""
        return row.set_at.isoformat()


@admin.register(Limit)
class LimitAdmin(ScreenAdmin):
    """Limits; they are set, changed and removed here, and effective within a second."""

    tenant_path = None
    list_display = (
        "scope",
        "max_concurrency",
        "rate",
        "burst",
        "waiting",
        "comment",
        "set_by",
        "set_at",
    )
    sortable_by = ("scope", "set_at")
    search_fields = ("scope", "comment")
    form = LimitForm
    operations = (SET, REMOVE)

    def get_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return (
            "scope",
            "max_concurrency",
            "rate",
            "burst",
            "comment",
            *((OPENED,) if obj is not None else ()),
        )

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return ("scope",) if obj is not None else ()

    def changeform_view(
        self, request: HttpRequest, object_id: str | None = None, *rest: Any, **more: Any
    ) -> Any:
        """Show a refusal as a message, for example of a limit that changed while the form was
        validated.
        """
        try:
            return super().changeform_view(request, object_id, *rest, **more)
        except DurableTasksError as refused:
            self.message_user(request, _t("Nothing was changed. %s") % refused, messages.ERROR)
            return HttpResponseRedirect(request.get_full_path())

    def save_model(self, request: HttpRequest, obj: Limit, form: Any, change: bool) -> None:
        SET.perform(
            obj.scope,
            by=who(request),
            reason=obj.comment,
            max_concurrency=obj.max_concurrency,
            rate=obj.rate or None,
            burst=obj.burst,
            seen_at=obj.set_at if change else None,
        )
        for warning in _warnings(obj):
            self.message_user(request, warning, messages.WARNING)

    def delete_model(self, request: HttpRequest, obj: Limit) -> None:
        REMOVE.perform(obj.scope, by=who(request), reason="")

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        """Remove the selected limits with the same operation as one."""
        for scope in list(queryset.values_list("pk", flat=True)):
            REMOVE.perform(scope, by=who(request), reason="")

    @admin.display(description=_("waiting"))
    def waiting(self, limit: Limit) -> int:
        """Count the tasks that wait for this limit."""
        return operator_limits.waiting_for(limit.scope)


def _warnings(limit: Limit) -> Iterator[str]:
    """Yield warnings: a scope that matches nothing yet, a limit that admits no task."""
    kind, _colon, name = limit.scope.partition(":")
    if kind in _KNOWN and name not in _KNOWN[kind]():
        yield _t(
            "No %(kind)s with the name %(name)s exists: the limit applies to no task until it does."
        ) % {"kind": kind, "name": name}
    if limit.max_concurrency == 0:
        yield _t(
            "With a max concurrency of 0 no task starts. To stop a queue temporarily, pause it."
        )


def _queues() -> set[str]:
    known = declared()
    return known | {depth.queue for depth in queues.depths(database_now(), known)}


def _tasks() -> frozenset[str]:
    inspect.load_tasks()
    return registry.names()


def _tenants() -> set[str]:
    return {
        str(pk)
        for pk in Tenant.objects.using(conf.settings().DATABASE).values_list("pk", flat=True)
    }


_KNOWN: dict[str, Callable[[], Collection[str]]] = {
    "queue": _queues,
    "task": _tasks,
    "tenant": _tenants,
}
