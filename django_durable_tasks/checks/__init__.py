"""System checks: report configurations that would lose, duplicate or delay work.

Each finding has an id, a text and a remedy. Only the check of the database connects, and only if
Django names the database (``migrate``, ``check --database``).
"""

from __future__ import annotations

from django.core import checks

from django_durable_tasks.checks.configuration import (
    check_celery,
    check_schedules,
    check_settings,
    check_tasks,
)
from django_durable_tasks.checks.database import OLDEST, check_database
from django_durable_tasks.checks.findings import FINDINGS, ProjectFinding

__all__ = [
    "FINDINGS",
    "OLDEST",
    "ProjectFinding",
    "check_celery",
    "check_database",
    "check_schedules",
    "check_settings",
    "check_tasks",
    "register",
]


def register() -> None:
    """Register the checks with Django; called once by ``apps.ready()``."""
    for check in (check_settings, check_tasks, check_schedules, check_celery):
        checks.register(check, "durable_tasks")
    checks.register(check_database, checks.Tags.database, "durable_tasks")
