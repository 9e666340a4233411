"""The rows that must always stand: the default tenant, the leader's lease, the lock of limits, also
after a flush.
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
    """Write again what the migrations wrote; a receiver of ``post_migrate``, which a flush sends
    too. Idempotent.
    """
    try:
        tenants, leases = (
            apps.get_model("django_durable_tasks", name) for name in ("Tenant", "SchedulerLease")
        )
    except LookupError:
        return  # our tables are not there: not yet, or no longer
    if using != conf.settings().DATABASE or not router.allow_migrate_model(using, tenants):
        return
    leases.objects.using(using).get_or_create(
        name=lease_name(), defaults={"expires_at": LONG_EXPIRED}
    )
    with suppress(LookupError):  # after a migration back to where there were no limits
        apps.get_model("django_durable_tasks", "LimitBucket").objects.using(using).get_or_create(
            scope=""
        )
    if tenants.objects.using(using).get_or_create(
        id=1, defaults={"slug": "default", "name": "Default"}
    )[1]:
        with connections[using].cursor() as cursor:
            for reset in connections[using].ops.sequence_reset_sql(no_style(), [tenants]):
                cursor.execute(reset)
