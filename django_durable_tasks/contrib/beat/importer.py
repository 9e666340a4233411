"""Imports the periodic tasks of another scheduler: one transaction per schedule. A repeated import
applies the changes.

A row starts paused if there is a reason to wait; a later import resumes it when the reason no
longer exists. A row that an operator paused stays paused, and an import never pauses a row that is
active already.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import IntegrityError
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.audit import recorded
from django_durable_tasks.choices import RecurringStatus
from django_durable_tasks.contrib.beat import tables as beat_tables
from django_durable_tasks.contrib.beat.tables import HOLDS
from django_durable_tasks.exceptions import TransitionRefused
from django_durable_tasks.models import DEFAULT_TENANT_ID, RecurringTask
from django_durable_tasks.models.schedules import RecurringTaskQuerySet
from django_durable_tasks.operations.operation import OF_ALL_TENANTS, Target, operation
from django_durable_tasks.option_values import checked_name
from django_durable_tasks.schedules import lifecycle
from django_durable_tasks.schedules.options import BEAT, columns

_TRIES = 3


def known(name: str) -> RecurringTask | None:
    """Return the recurring task with this name, of the default tenant."""
    found: RecurringTask | None = _rows(name).first()
    return found


@operation(
    Target.INSTALLATION,
    name="import_beat",
    title=_("Import schedules of django-celery-beat"),
    help=_("Imports periodic tasks and shows which of them will fire differently, and why."),
    permission="",
    dry_run=True,
    confirm=False,
    not_in_api=OF_ALL_TENANTS,
    not_in_admin="it is used once per migration",
    counted="imported",
)
def take_over(
    name: str,
    task: str,
    options: Mapping[str, Any],
    *,
    hold: str = "",
    disable_in: str | None = None,
) -> RecurringTask:
    """Import one row of beat, paused with ``hold`` as its reason if one is given.

    ``disable_in`` is beat's database: a row that fires here from now on is disabled there, in the
    same transaction if both are one database. Raises TransitionRefused for a row with this name
    that was not imported, and all errors of ``upsert``; nothing is written then.
    """
    values = columns(name, options) | {"task": checked_name("task", task), "source": BEAT}
    for _try in range(_TRIES):
        try:
            with recorded("installation.import_beat"):
                row = _take(name, values, hold)
                if disable_in is not None and row.status == RecurringStatus.ACTIVE:
                    beat_tables.disable(disable_in, [name])
                return row
        except IntegrityError as taken:  # another import created it concurrently: change it
            lost = taken
    raise lost


def _take(name: str, values: Mapping[str, Any], hold: str) -> RecurringTask:
    before = _rows(name).select_for_update().first()
    refuse_foreign(before)
    if before is None:
        row = lifecycle.create(name, DEFAULT_TENANT_ID, values, paused=bool(hold))
        if hold:
            lifecycle.pause(row, reason=hold)
        return row
    row = lifecycle.change(before, values)
    if not hold and row.status == RecurringStatus.PAUSED and row.status_reason in HOLDS:
        lifecycle.resume(row)
    return row


def _rows(name: str) -> RecurringTaskQuerySet:
    return lifecycle.recurring().for_tenant(DEFAULT_TENANT_ID).filter(name=name)


def refuse_foreign(row: RecurringTask | None) -> None:
    """Raise TransitionRefused for a row that was not imported from beat."""
    if row is not None and row.source != BEAT:
        whose = row.source or "an operator"
        raise TransitionRefused(
            f"A recurring task {row.name!r} is there already and belongs to {whose}; rename one."
        )
