"""All operations, by their keys."""

from __future__ import annotations

from django_durable_tasks.operations import (
    limits,
    maintenance,
    schedules,
    tasks,
    tenants,
    workflows,
)
from django_durable_tasks.operations.operation import Operation

_MODULES = (
    tasks,
    workflows,
    limits,
    schedules,
    tenants,
    maintenance,
)
OPERATIONS: dict[str, Operation] = {
    operation.key: operation for module in _MODULES for operation in module.OPERATIONS
}


def register_operations(*operations: Operation) -> None:
    """Add the operations of an optional app; called in ``AppConfig.ready()``."""
    OPERATIONS.update({operation.key: operation for operation in operations})
