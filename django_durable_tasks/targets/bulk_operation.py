"""``django_durable_tasks.bulk_operation`` performs an operation on many tasks of a tenant, step by
step.
"""

from __future__ import annotations

import uuid
from typing import Any

from django_durable_tasks.decorators import durable_task
from django_durable_tasks.engine.db.clock_estimate import estimated_now
from django_durable_tasks.engine.tenants import bulk_operations, quota_events
from django_durable_tasks.exceptions import QuotaExceeded
from django_durable_tasks.rules.target_types import BULK_OPERATION_TASK


@durable_task(name=BULK_OPERATION_TASK, bind=True, backoff_max=300)
def bulk_operation(self: Any, operation_id: str) -> dict[str, Any]:
    """Perform the remaining steps; a cancellation takes effect between two steps."""
    # Of the task's tenant only, so that a client cannot name the operation of another one.
    tenant_id = self.durable.tenant.pk
    while True:
        self.durable.check()
        try:
            step = bulk_operations.advance(uuid.UUID(operation_id), tenant_id, now=estimated_now())
        except QuotaExceeded as refused:
            quota_events.refused(tenant_id, refused.quota, str(refused))
            raise
        self.durable.progress(step.changed, step.matched, "changed tasks of those that match")
        if step.is_last:
            return {"matched": step.matched, "changed": step.changed, "failed": step.failed}
