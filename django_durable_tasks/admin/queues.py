"""The admin of queues: all queues that are in use, the number of their tasks, and a button to
pause or resume each.
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from django_durable_tasks import ports, registry
from django_durable_tasks.admin import actions, overview
from django_durable_tasks.admin.operation_form import form_class
from django_durable_tasks.admin.readonly import ReadOnlyAdmin
from django_durable_tasks.celery import inspect
from django_durable_tasks.engine.cluster import queues
from django_durable_tasks.engine.db.clock import database_now
from django_durable_tasks.exceptions import DurableTasksError
from django_durable_tasks.models import QueueControl
from django_durable_tasks.operations.operation import Operation
from django_durable_tasks.operations.queues import PAUSE, RESUME


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
            title=_("Queues"),
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
                _("No queue named %r is in use. Nothing was paused.") % name,
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
            self.message_user(request, _("Nothing was changed. %s") % refused, messages.ERROR)
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
