"""The operation that imports a periodic task of beat."""

from __future__ import annotations

import logging
from typing import Any

from django.utils.translation import gettext_lazy as _

from django_durable_tasks.contrib.beat import importer
from django_durable_tasks.operations.operation import Operation, OperationResult, Target

logger = logging.getLogger("django_durable_tasks.operations")


def _import_beat(
    name: str, *, by: str, reason: str, task: str, options: dict[str, Any], **how: Any
) -> OperationResult:
    """Import one periodic task; ``value`` is the RecurringTask."""
    row = importer.take_over(name, task, options, by=by, reason=reason, **how)
    logger.info("Operation import of %s has changed 1 object; by: %s; reason: %s", name, by, reason)
    return OperationResult({"imported": 1}, value=row)


IMPORT_BEAT = Operation(
    target=Target.INSTALLATION,
    name="import_beat",
    title=_("Import schedules of django-celery-beat"),
    help=_("Imports periodic tasks and shows which of them will fire differently, and why."),
    permission="",
    perform=_import_beat,
    not_in_api="it changes rows of all tenants",
    dry_run=True,
    confirm=False,
    not_in_admin="it is used once per migration",
)
