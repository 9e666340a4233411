"""The admin site of the package: importing the modules registers their pages."""

from django_durable_tasks.admin import (  # noqa: F401
    audit_entries,
    calendars,
    cluster,
    graphs,
    recurring_tasks,
    tasks,
    tenants,
    workflow_runs,
)
