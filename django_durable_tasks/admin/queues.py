"""The admin of queues and of limits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST

from django_durable_tasks import conf, ports, registry
from django_durable_tasks.admin import actions, overview
from django_durable_tasks.admin.actions import form_class, who
from django_durable_tasks.admin.fields import OPENED, EditModelForm
from django_durable_tasks.admin.readonly import ReadOnlyAdmin, ScreenAdmin
from django_durable_tasks.celery import inspect
from django_durable_tasks.engine.cluster import queues
from django_durable_tasks.engine.db.clock import database_now
from django_durable_tasks.engine.limits import operator_limits
from django_durable_tasks.exceptions import DurableTasksError
from django_durable_tasks.models import Limit, QueueControl, Tenant
from django_durable_tasks.operations.limits import PAUSE, REMOVE, RESUME, SET
from django_durable_tasks.operations.operation import Operation

# The admin of queues: all queues that are in use, the number of their tasks, and a button to pause
# or resume each.


def declared() -> set[str]:
    """Return the queues of the durable tasks that are registered in this process."""
    inspect.load_tasks()
    found = set()
    for name in registry.names():
        try:
            found.add(ports.queue_of(name, registry.get(name).options.queue))
        except DurableTasksError:
            continue
    return found


@admin.register(QueueControl)
class QueueControlAdmin(ReadOnlyAdmin):
    """Queues."""

    tenant_path = None
    actions = None
    operations = (PAUSE, RESUME)

    def get_urls(self) -> list[URLPattern]:
        site = self.admin_site.admin_view
        return [
            path("pause/", site(self.pause_view), name="django_durable_tasks_queuecontrol_pause"),
            path(
                "resume/",
                site(require_POST(self.resume_view)),
                name="django_durable_tasks_queuecontrol_resume",
            ),
            *super().get_urls(),
        ]

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        now = database_now()
        rows = overview.rows_of(queues.depths(now, declared()), now)
        return self._page(
            request,
            "queues",
            queues=rows,
            title=gettext("Queues"),
            asked_at=now,
            may_pause=self.permits(request, PAUSE),
            **(extra_context or {}),
        )

    def pause_view(self, request: HttpRequest) -> HttpResponse:
        """Show a form for the reason, then pause the queue."""
        if not self.permits(request, PAUSE):
            raise PermissionDenied
        name = str((request.POST if request.method == "POST" else request.GET).get("queue", ""))
        now = database_now()
        depth = {found.queue: found for found in queues.depths(now, declared())}.get(name)
        if depth is None:
            self.message_user(
                request,
                gettext("No queue named %r is in use. Nothing was paused.") % name,
                messages.ERROR,
            )
            return self._back()
        form = form_class(PAUSE)(request.POST if request.method == "POST" else None)
        if request.method == "POST" and form.is_valid():
            return self._perform(request, PAUSE, name, form.reason)
        return self._page(
            request,
            "pause",
            form=form,
            depth=depth,
            operation=PAUSE,
            title=f"{PAUSE.title}: {name}",
            waiting=depth.due + depth.queued,
        )

    def resume_view(self, request: HttpRequest) -> HttpResponse:
        """Resume the queue."""
        if not self.permits(request, RESUME):
            raise PermissionDenied
        return self._perform(request, RESUME, str(request.POST.get("queue", "")), "")

    def _perform(
        self, request: HttpRequest, operation: Operation, name: str, reason: str
    ) -> HttpResponse:
        try:
            outcome = operation.perform(name, by=actions.who(request), reason=reason)
        except DurableTasksError as refused:
            self.message_user(request, gettext("Nothing was changed. %s") % refused, messages.ERROR)
            return self._back()
        if outcome.changed:
            actions.remember(self, request, [name], f"{operation.title}. {reason}".strip())
        level = messages.SUCCESS if outcome.changed else messages.WARNING
        self.message_user(request, outcome.message, level)
        return self._back()

    named_by = ("name",)

    def _page(self, request: HttpRequest, name: str, **context: Any) -> HttpResponse:
        shown = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "media": self.media,
            **context,
        }
        return TemplateResponse(request, f"admin/django_durable_tasks/{name}.html", shown)

    def _back(self) -> HttpResponse:
        return HttpResponseRedirect(reverse("admin:django_durable_tasks_queuecontrol_changelist"))


# The admin of limits that operators set, which replace those of code and settings.


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
            self.message_user(request, gettext("Nothing was changed. %s") % refused, messages.ERROR)
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
        yield gettext(
            "No %(kind)s with the name %(name)s exists: the limit applies to no task until it does."
        ) % {"kind": kind, "name": name}
    if limit.max_concurrency == 0:
        yield gettext(
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
