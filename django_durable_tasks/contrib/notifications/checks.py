"""The system check of notifications."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.checks import CheckMessage, Tags, register
from django.db import connections

from django_durable_tasks.checks.configuration import valid_settings
from django_durable_tasks.checks.findings import FINDINGS
from django_durable_tasks.contrib.notifications.models import NotificationSetting


@register(Tags.database)
def check_unsent_notifications(
    *, databases: Sequence[str] | None = None, **_: Any
) -> list[CheckMessage]:
    """Find enabled settings although nothing is sent; connects."""
    settings = valid_settings()
    if settings is None or settings.NOTIFICATIONS or settings.DATABASE not in (databases or ()):
        return []
    table = NotificationSetting._meta.db_table
    if table not in connections[settings.DATABASE].introspection.table_names():
        return []
    rows = NotificationSetting.objects.using(settings.DATABASE).filter(enabled=True)
    number = rows.count()
    return [FINDINGS["W016"](number=number)] if number else []
