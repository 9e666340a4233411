"""The circuit breakers of endpoints: postpones tasks, and records the results of requests.

The key of an endpoint is the ``limit_key`` of its tasks.
"""

from __future__ import annotations

import random
import uuid
from datetime import datetime, timedelta

from django.db.models import Q, Subquery

from django_durable_tasks import conf
from django_durable_tasks.engine import transitions
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.db.clock import after
from django_durable_tasks.engine.db.clock_estimate import estimated_now
from django_durable_tasks.engine.db.deadlocks import retry_on_deadlock
from django_durable_tasks.engine.db.statements import statement
from django_durable_tasks.models import Endpoint
from django_durable_tasks.models.clock import DatabaseNow
from django_durable_tasks.models.endpoint import EndpointQuerySet
from django_durable_tasks.rules.targets import breaker
from django_durable_tasks.rules.targets.breaker import EndpointHealth

_KEPT = timedelta(days=30)
_PROBE_MARGIN = 5.0
"""Seconds beyond HTTP_TIMEOUT_MAX after which another task may probe."""


def _endpoints() -> EndpointQuerySet:
    found: EndpointQuerySet = Endpoint.objects.using(tables.database()).unguarded()
    return found


def postpone(task_id: uuid.UUID, epoch: int) -> bool:
    """Return a QUEUED task to PENDING if the breaker of its endpoint is open; return whether.

    After the pause one task at a time is started as a probe.
    """
    found = _open_endpoint(task_id)
    if found is None:
        return False
    endpoint_id, open_until = found
    wait = EndpointHealth(open_until=open_until).waits(estimated_now())
    if wait:
        again = breaker.spread(wait, random.random())
    elif _probes(endpoint_id, open_until):
        return False
    else:
        again = breaker.while_probing(random.random())
    this = tables.tasks().filter(pk=task_id)
    return bool(transitions.return_to_pending(this, again, {task_id: epoch}))


def _open_endpoint(task_id: uuid.UUID) -> tuple[int, datetime] | None:
    """Return id and end of the pause of the task's endpoint; None if its breaker is closed."""
    sql = statement("open_endpoint")
    if sql is not None:
        rows = tables.read(sql, {"id": task_id})
        return (rows[0][0], rows[0][1]) if rows else None
    key = Subquery(tables.tasks().filter(pk=task_id).values("limit_key")[:1])
    row = _endpoints().filter(key=key, open_until__isnull=False).first()
    return None if row is None or row.open_until is None else (row.pk, row.open_until)


def _probes(endpoint_id: int, open_until: datetime) -> bool:
    """Become the only prober until the longest request would have ended; return whether."""
    free = _endpoints().filter(Q(probe_until__isnull=True) | Q(probe_until__lte=DatabaseNow()))
    longest = conf.settings().HTTP_TIMEOUT_MAX + _PROBE_MARGIN
    return bool(
        free.filter(pk=endpoint_id, open_until=open_until).update(probe_until=after(longest))
    )


def succeeded(key: str) -> None:
    """Record an answer that shows that the endpoint works; close its breaker."""
    sql = statement("close_endpoint")
    if sql is not None:
        tables.count(sql, {"key": key})
        return
    _endpoints().filter(Q(failures__gt=0) | Q(open_until__isnull=False), key=key).update(
        failures=0, openings=0, open_until=None, probe_until=None, updated_at=DatabaseNow()
    )


@retry_on_deadlock
def failed(key: str, tenant_id: int, reason: str) -> float:
    """Record a request without an answer, or the answer of an overloaded server.

    Return for how many seconds the breaker opens; 0 if it does not.
    """
    settings, now = conf.settings(), estimated_now()
    with tables.atomic():
        row = _endpoints().select_for_update().filter(key=key).first()
        if row is None:
            new = [Endpoint(key=key, tenant_id=tenant_id)]
            _endpoints().bulk_create(new, ignore_conflicts=True)
            row = _endpoints().select_for_update().get(key=key)
        health = EndpointHealth(
            failures=row.failures, openings=row.openings, open_until=row.open_until
        )
        pause = breaker.pause_after(
            health, now, settings.HTTP_BREAKER_FAILURES, settings.HTTP_BREAKER_PAUSE
        )
        opened = {
            "openings": row.openings + 1,
            "open_until": after(pause),
            "probe_until": None,
        }
        _endpoints().filter(pk=row.pk).update(
            failures=row.failures + 1,
            last_failure=reason[:200],
            updated_at=DatabaseNow(),
            **(opened if pause else {}),
        )
    return pause


def prune(now: datetime) -> int:
    """Delete endpoints whose state has not changed for 30 days; return how many."""
    return _endpoints().filter(updated_at__lt=now - _KEPT).delete()[0]
