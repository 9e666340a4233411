"""Creates the rows that must always exist: default tenant, leader's lease, lock row of limits.

``apps.py`` connects it to ``post_migrate``, so that the rows also exist after a flush.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from django.apps import apps as installed
from django.core.management.color import no_style
from django.db import connections, router

from django_durable_tasks import conf
from django_durable_tasks.models.lease import LONG_EXPIRED, lease_name


def write_first_rows(*, using: str, apps: Any = installed, **_: Any) -> None:
    """Create the rows that the migrations insert, unless they exist; a receiver of
    ``post_migrate``.
    """
    try:
        tenants, leases = (
            apps.get_model("django_durable_tasks", name) for name in ("Tenant", "SchedulerLease")
        )
    except LookupError:
        return  # migrated to a state without these tables
    if using != conf.settings().DATABASE or not router.allow_migrate_model(using, tenants):
        return
    leases.objects.using(using).get_or_create(
        name=lease_name(), defaults={"expires_at": LONG_EXPIRED}
    )
    with suppress(LookupError):  # migrated to a state without limits
        apps.get_model("django_durable_tasks", "LimitBucket").objects.using(using).get_or_create(
            scope=""
        )
    if tenants.objects.using(using).get_or_create(
        id=1, defaults={"slug": "default", "name": "Default"}
    )[1]:
        with connections[using].cursor() as cursor:
            for reset in connections[using].ops.sequence_reset_sql(no_style(), [tenants]):
                cursor.execute(reset)
