"""The screen of queues: all that are in use, also those nobody ever paused, with what stands in them and one button."""

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
from django_durable_tasks.admin.readonly import ReadOnlyAdmin
from django_durable_tasks.celery import wiring
from django_durable_tasks.exceptions import DurableTasksError
from django_durable_tasks.lifecycle import queues
from django_durable_tasks.lifecycle.clock import database_now
from django_durable_tasks.models import QueueControl


def declared() -> set[str]:
    """Return the queues of the durable tasks that this process knows."""
    wiring.load_tasks()
    found = set()
    for name in registry.names():
        try:
            found.add(ports.queue_of(name, registry.get(name).options.queue))
        except DurableTasksError:
            continue
    return found


@admin.register(QueueControl)
class QueueControlAdmin(ReadOnlyAdmin):
    """Queues; each is paused and resumed by one button."""

    actions = None

    def get_urls(self) -> list[URLPattern]:
        site = self.admin_site.admin_view
        return [
            path("pause/", site(self.pause_view), name="django_durable_tasks_queuecontrol_pause"),
            path("resume/", site(require_POST(self.resume_view)), name="django_durable_tasks_queuecontrol_resume"),
            *super().get_urls(),
        ]

    def has_pause_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm("django_durable_tasks.pause_queuecontrol"))

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        now = database_now()
        rows = overview.rows_of(queues.depths(now, declared()), now)
        return self._page(request, "queues", queues=rows, title=_("Queues"), asked_at=now,
                          may_pause=self.has_pause_permission(request), **(extra_context or {}))  # fmt: skip

    def pause_view(self, request: HttpRequest) -> HttpResponse:
        """Ask for a reason, then hold the queue."""
        if not self.has_pause_permission(request):
            raise PermissionDenied
        name = str((request.POST if request.method == "POST" else request.GET).get("queue", ""))
        now = database_now()
        depth = {found.queue: found for found in queues.depths(now, declared())}.get(name)
        if depth is None:
            self.message_user(
                request, _("No queue of the name %r is in use; nothing was paused.") % name, messages.ERROR
            )
            return self._back()
        form = actions.NeededReasonForm(request.POST if request.method == "POST" else None)
        if request.method == "POST" and form.is_valid():
            return self._pause(request, name, form.cleaned_data["reason"])
        title = _("Pause queue %s") % name
        return self._page(request, "pause", form=form, depth=depth, title=title, waiting=depth.due + depth.queued)

    def _pause(self, request: HttpRequest, name: str, reason: str) -> HttpResponse:
        try:
            queues.pause(name, by=actions.who(request), reason=reason)
        except DurableTasksError as refused:
            self.message_user(request, _("Nothing was changed. %s") % refused, messages.ERROR)
            return self._back()
        actions.remember(self, request, [name], f"Paused. {reason}")
        self.message_user(request, _("Queue %s is paused: nothing of it starts; what runs goes on.") % name)
        return self._back()

    def resume_view(self, request: HttpRequest) -> HttpResponse:
        """Let the queue go on."""
        if not self.has_pause_permission(request):
            raise PermissionDenied
        name = str(request.POST.get("queue", ""))
        if queues.resume(name, by=actions.who(request)):
            actions.remember(self, request, [name], "Resumed.")
            self.message_user(request, _("Queue %s goes on.") % name)
        else:
            self.message_user(request, _("Queue %s was not paused.") % name, messages.WARNING)
        return self._back()

    named_by = ("name",)

    def _page(self, request: HttpRequest, name: str, **context: Any) -> HttpResponse:
        shown = {**self.admin_site.each_context(request), "opts": self.opts, "media": self.media, **context}
        return TemplateResponse(request, f"admin/django_durable_tasks/{name}.html", shown)

    def _back(self) -> HttpResponse:
        return HttpResponseRedirect(reverse("admin:django_durable_tasks_queuecontrol_changelist"))
