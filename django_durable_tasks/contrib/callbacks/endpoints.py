"""The circuit breakers of endpoints, and the records of the requests that were sent."""

from __future__ import annotations

import random
import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Case, F, Q, Subquery, Value, When

from django_durable_tasks import conf, process_state
from django_durable_tasks.cluster.nodes import HeartbeatMonitor
from django_durable_tasks.contrib.callbacks.models import DeliveryAttempt, Endpoint
from django_durable_tasks.encryption import current_key_id
from django_durable_tasks.limits.config import RecentLimits
from django_durable_tasks.limits.scopes import scope_of_key
from django_durable_tasks.models.fields import DatabaseNow
from django_durable_tasks.signals import endpoint_changed
from django_durable_tasks.states import claims
from django_durable_tasks.store import tables
from django_durable_tasks.store.clock import after, estimated_now
from django_durable_tasks.store.connections import dedicated_connection
from django_durable_tasks.store.dialects import POSTGRESQL, sql, verb
from django_durable_tasks.store.errors import retry_on_deadlock
from django_durable_tasks.targets import answers
from django_durable_tasks.targets.answers import EndpointHealth
from django_durable_tasks.targets.http_request import TIMEOUT_MAX
from django_durable_tasks.task_values import Run

# The circuit breakers of endpoints: postpones tasks, and records the results of requests.
#
# The key of an endpoint is the ``limit_key`` of its tasks. While its breaker is open, it is a
# limit (``limits/config.py``), so that its tasks are not claimed. ``postpone`` returns
# those that were claimed before.


_KEPT = timedelta(days=30)
# Endpoints that each process reads once a second. Tasks of further ones are postponed when they
# start.
OPEN_ENDPOINTS = 1_000
# Seconds for which callbacks wait after the breaker opens for the first time. Most restarts of a
# server take less; in longer outages the wait grows to 20 times this.
PAUSE = 30.0
_PROBE_MARGIN = 5.0
"""Seconds beyond the longest attempt after which another task may probe."""
_CALM = 3_600.0
"""Seconds for which a success does not end the state of an endpoint that ended deliveries, so that
one whose answers alternate has at most one event an hour.
"""


_CLOSED: Mapping[str, Any] = {
    "failures": 0,
    "openings": 0,
    "open_until": None,
    "probe_until": None,
    "updated_at": DatabaseNow(),
}


def postpone(task_id: uuid.UUID, epoch: int) -> bool:
    """Return a QUEUED task to PENDING if the breaker of its endpoint is open; return whether.

    After the pause one task at a time is started as a probe.
    """
    open_endpoint = _open_endpoint(task_id)
    if open_endpoint is None:
        return False
    endpoint_id, open_until = open_endpoint
    wait = EndpointHealth(open_until=open_until).waits(estimated_now())
    if wait:
        again = answers.spread_wait(wait, random.random())
    else:
        # Become the only prober until the longest request would have ended.
        free = tables.unguarded(Endpoint).filter(
            Q(probe_until__isnull=True) | Q(probe_until__lte=DatabaseNow())
        )
        probe_until = after(TIMEOUT_MAX + _PROBE_MARGIN)
        if free.filter(pk=endpoint_id, open_until=open_until).update(probe_until=probe_until):
            return False
        again = answers.wait_while_probing(random.random())
    this = tables.tasks().filter(pk=task_id)
    return bool(claims.return_to_pending(this, again, {task_id: epoch}))


@verb
def _open_endpoint(task_id: uuid.UUID) -> tuple[int, datetime] | None:
    """Return id and end of the pause of the task's endpoint; None if its breaker is closed."""
    key = Subquery(tables.tasks().filter(pk=task_id).values("limit_key")[:1])
    row = tables.unguarded(Endpoint).filter(key=key, open_until__isnull=False).first()
    return None if row is None or row.open_until is None else (row.pk, row.open_until)


@_open_endpoint.on(POSTGRESQL)
def _open_endpoint_in_one_statement(task_id: uuid.UUID) -> tuple[int, datetime] | None:
    rows = tables.read(sql("open_endpoint"), {"id": task_id})
    return (rows[0][0], rows[0][1]) if rows else None


def end_pauses_after(tolerance: float) -> int:
    """End the pauses that began more than ``tolerance`` seconds later than now, because the
    database's clock was set back since then. The next task probes the endpoint. Return how many.
    """
    later = tables.unguarded(Endpoint).filter(
        open_until__isnull=False, updated_at__gt=after(tolerance)
    )
    return later.update(open_until=DatabaseNow(), probe_until=None, updated_at=DatabaseNow())


def open_endpoints() -> dict[str, int]:
    """Return how many tasks may run at once of each endpoint whose breaker is open, by scope: 0
    during the pause, 1 after it.

    Of more than OPEN_ENDPOINTS only those whose pause ends last are returned. Tasks of the others
    are postponed when they start.
    """
    is_open = Q(open_until__isnull=False)
    waits = Case(When(open_until__gt=DatabaseNow(), then=Value(0)), default=Value(1))
    rows = tables.unguarded(Endpoint).filter(is_open).annotate(admitted=waits)
    latest = rows.order_by("-open_until").values_list("key", "admitted")[:OPEN_ENDPOINTS]
    return {scope_of_key(key): admitted for key, admitted in latest}


def succeeded(key: str) -> None:
    """Record an answer that shows that the endpoint works; close its breaker."""
    if _close(key):
        process_state.of(RecentLimits).expire()


@verb
def _close(key: str) -> int:
    calm_since = after(-_CALM)
    changes = Q(failures__gt=0) | Q(open_until__isnull=False) | Q(gone_at__lte=calm_since)
    still_gone = Case(When(gone_at__gt=calm_since, then=F("gone_at")), default=None)
    return tables.unguarded(Endpoint).filter(changes, key=key).update(**_CLOSED, gone_at=still_gone)


@_close.on(POSTGRESQL)
def _close_in_one_statement(key: str) -> int:
    return tables.count(sql("close_endpoint"), {"key": key, "calm": _CALM})


@retry_on_deadlock
def failed(key: str, tenant_id: int, reason: str, run: Run | None = None) -> float:
    """Record a request without an answer, or the answer of an overloaded server.

    Return for how many seconds the breaker opens; 0 if it does not. With the run of a task
    of the project, the first opening since the last success sends ``endpoint_changed``.
    """
    now = estimated_now()
    with tables.atomic():
        row = _locked(key, tenant_id)
        health = EndpointHealth(
            failures=row.failures, openings=row.openings, open_until=row.open_until
        )
        pause = answers.breaker_pause_after(
            health, now, conf.settings().HTTP_BREAKER_FAILURES, PAUSE
        )
        opened = {"openings": row.openings + 1, "open_until": after(pause), "probe_until": None}
        tables.unguarded(Endpoint).filter(pk=row.pk).update(
            failures=row.failures + 1,
            last_failure=reason[:200],
            updated_at=DatabaseNow(),
            **(opened if pause else {}),
        )
        if pause and not row.openings and run is not None:
            endpoint_changed.send(Endpoint, change="opened", endpoint=key, reason=reason, run=run)
    if pause:
        process_state.of(RecentLimits).expire()
    return pause


@retry_on_deadlock
def stopped(key: str, tenant_id: int, reason: str, run: Run) -> None:
    """Record an answer that ends deliveries, such as 410. It closes the breaker, because the server
    works. Sends ``endpoint_changed`` unless the endpoint has ended deliveries already.
    """
    with tables.atomic():
        row = _locked(key, tenant_id)
        tables.unguarded(Endpoint).filter(pk=row.pk).update(
            **_CLOSED, last_failure=reason[:200], gone_at=row.gone_at or DatabaseNow()
        )
        if row.gone_at is None:
            endpoint_changed.send(Endpoint, change="gone", endpoint=key, reason=reason, run=run)


def _locked(key: str, tenant_id: int) -> Endpoint:
    row = tables.unguarded(Endpoint).select_for_update().filter(key=key).first()
    if row is None:
        new = [Endpoint(key=key, tenant_id=tenant_id)]
        tables.unguarded(Endpoint).bulk_create(new, ignore_conflicts=True)
        row = tables.unguarded(Endpoint).select_for_update().get(key=key)
    return row


def prune(now: datetime, monitor: HeartbeatMonitor) -> int:
    """Job: delete endpoints whose state has not changed for 30 days; return how many."""
    with dedicated_connection():
        return tables.unguarded(Endpoint).filter(updated_at__lt=now - _KEPT).delete()[0]


# Records the HTTP requests that tasks send.


def record_delivery(attempt: DeliveryAttempt) -> None:
    """Insert the record of one request. Raises the errors of the database."""
    attempt.encryption_key = current_key_id()
    DeliveryAttempt.objects.using(tables.database()).unguarded().bulk_create([attempt])
