"""The screen of limits: an operator's rows, which count more than code and settings."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.admin.readonly import ScreenAdmin
from django_durable_tasks.lifecycle import limit_orders
from django_durable_tasks.models import Limit


@admin.register(Limit)
class LimitAdmin(ScreenAdmin):
    """Limits; set, changed and removed here, in force within a second."""

    list_display = ("scope", "max_concurrency", "rate", "burst", "parked", "note", "set_by", "set_at")
    sortable_by = ("scope", "set_at")
    search_fields = ("scope", "note")
    fields = ("scope", "max_concurrency", "rate", "burst", "note")

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return ("scope",) if obj is not None else ()

    def save_model(self, request: HttpRequest, obj: Limit, form: Any, change: bool) -> None:
        limit_orders.set_limit(
            obj.scope, max_concurrency=obj.max_concurrency, rate=obj.rate or None, burst=obj.burst,
            by=request.user.get_username(), note=obj.note,
        )  # fmt: skip

    def delete_model(self, request: HttpRequest, obj: Limit) -> None:
        limit_orders.remove_limit(obj.scope)

    @admin.display(description=_("waiting"))
    def parked(self, limit: Limit) -> int:
        """Count the tasks that wait for this limit."""
        return limit_orders.waiting_for(limit.scope)
