"""All operations, by their keys."""

from __future__ import annotations

from django_durable_tasks.operations import (
    api_keys,
    calendars,
    dead_letters,
    dependencies,
    gates,
    limits,
    maintenance,
    notification_settings,
    queues,
    schedules,
    tasks,
    tenants,
    workflows,
)
from django_durable_tasks.operations.operation import Operation

_MODULES = (
    tasks,
    dead_letters,
    workflows,
    gates,
    dependencies,
    queues,
    limits,
    schedules,
    calendars,
    api_keys,
    tenants,
    notification_settings,
    maintenance,
)
OPERATIONS: dict[str, Operation] = {
    operation.key: operation for module in _MODULES for operation in module.OPERATIONS
}
