"""Creates the task of a request with its answer and its audit entry in one statement, which is its
own transaction. PostgreSQL executes it in one round trip instead of five.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime

from django_durable_tasks.engine import transitions
from django_durable_tasks.engine.audit.recorder import AuditRecorder, as_recordset
from django_durable_tasks.engine.db.connections import TimeLimits
from django_durable_tasks.engine.db.deadlocks import retry_on_deadlock
from django_durable_tasks.engine.tasks.enqueue import planned
from django_durable_tasks.engine.tasks.insert import insert_with_answer
from django_durable_tasks.engine.tasks.new_task import Call
from django_durable_tasks.engine.tenants.idempotent_requests import (
    RequestIdentity,
    StoredAnswer,
    in_progress,
)
from django_durable_tasks.engine.tenants.quotas import quotas
from django_durable_tasks.models import Task, Tenant


def create_with_answer(
    call: Call,
    tenant: Tenant,
    identity: RequestIdentity,
    now: datetime,
    limits: TimeLimits,
    answer_of: Callable[[Task], StoredAnswer],
) -> StoredAnswer | None:
    """Create the task of this call, and store the answer under the key of the request; return it.

    Return None, without a change, if the key is taken, or if the task needs further statements: it
    has keys or dependencies, its tenant has a quota of open tasks, or writes of others belong to
    its transaction. The caller then creates it in a transaction. ``now``: a recent time of the
    database. ``answer_of`` returns the answer, whose body is JSON text, and must not use the
    database. Raises DurableTasksError, and RequestInProgress like ``once``.
    """
    if call.options.depends_on is not None or quotas(tenant).open_tasks is not None:
        return None
    if not transitions.can_create_with_answer():
        return None
    task = transitions.with_times(planned(call), now)
    if task.has_key:
        return None
    row = transitions.row_at(task, now)
    answer, recorder = answer_of(row), AuditRecorder("task.create", "", "")
    recorder.created_task(row)
    request = asdict(identity)
    parameters = {
        **{"request_key" if name == "key" else name: value for name, value in request.items()},
        "lock": limits.parameters()["lock"],
        "status_code": answer.status_code,
        "headers": json.dumps(dict(answer.headers)),
        "body": answer.body.decode(),
        "entries": as_recordset(recorder.entries()),
    }
    with in_progress(identity):
        created = retry_on_deadlock(insert_with_answer)(task, now, parameters)
    return answer if created else None
