"""The maintenance jobs of notifications, alerts and the watchdog."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

from django_durable_tasks import registry
from django_durable_tasks.celery.live_runs import process_runs
from django_durable_tasks.cluster.nodes import HeartbeatMonitor
from django_durable_tasks.conf import settings
from django_durable_tasks.contrib.callbacks import http
from django_durable_tasks.contrib.callbacks.tasks import send_request
from django_durable_tasks.contrib.notifications import deliveries
from django_durable_tasks.decorators import durable_task
from django_durable_tasks.exceptions import DeliveryFailed, InvalidOption, InvalidTarget
from django_durable_tasks.masking import masked_url
from django_durable_tasks.scheduler.jobs import SLICE, Job, register_job
from django_durable_tasks.store.clock import estimated_now
from django_durable_tasks.store.connections import dedicated_connection
from django_durable_tasks.targets.http_request import http_request
from django_durable_tasks.task_names import WATCHDOG_TASK
from django_durable_tasks.tasks import enqueue
from django_durable_tasks.tasks.new_task import Call
from django_durable_tasks.tasks.options import CallOptions

# Pruning competes with starting tasks for the database: it pauses three times as long as it took.
_PAUSE_FACTOR = 3.0
_PRUNED = 100
# Seconds. A probe that starts later would report that tasks start although they start late.
_USEFUL_FOR = 120.0


def register() -> None:
    """Let the leader run the jobs."""
    register_job(
        "deliver_notifications",
        lambda: Job(
            "deliver_notifications", deliver_notifications, every=min(0.5, settings().POLL)
        ),
    )
    register_job("watch_alerts", lambda: Job("watch_alerts", watch_alerts, every=10.0))
    register_job("probe_workers", lambda: Job("probe_workers", ProbeWorkers(), every=5.0))
    register_job(
        "prune_notifications",
        lambda: Job(
            "prune_notifications",
            prune_notifications,
            every=10.0,
            pause_factor=_PAUSE_FACTOR,
            dispatches=False,
        ),
    )


def deliver_notifications(now: datetime, monitor: HeartbeatMonitor) -> int:
    """Process batches of due events for one slice."""
    end, changed = time.monotonic() + SLICE, 0
    with dedicated_connection():
        while number := deliveries.create_due_deliveries(now, settings().BATCH_SIZE):
            changed += number
            if time.monotonic() >= end:
                break
    return changed


def watch_alerts(now: datetime, monitor: HeartbeatMonitor) -> int:
    """Check the conditions once."""
    with dedicated_connection():
        deliveries.watch_alerts(now)
    return 0


class ProbeWorkers:
    """Create one task per minute of the database's clock; does nothing without WATCHDOG_URL."""

    def __init__(self) -> None:
        self._minute: datetime | None = None

    def __call__(self, now: datetime, monitor: HeartbeatMonitor) -> int:
        minute = now.replace(second=0, microsecond=0)
        if settings().WATCHDOG_URL is None or minute == self._minute:
            return 0
        # Once, also if two schedulers do it.
        key = f"durable-watchdog-{int(minute.timestamp()) // 60}"
        options = CallOptions(idempotency_key=key, expires_in=_USEFUL_FOR)
        with dedicated_connection():
            enqueue.submit(Call(registry.get(WATCHDOG_TASK), (), {}, options))
        self._minute = minute
        return 1


def prune_notifications(now: datetime, monitor: HeartbeatMonitor) -> int:
    """Delete one batch of events after their retention."""
    with dedicated_connection():
        return deliveries.prune_events(now, min(_PRUNED, settings().BATCH_SIZE))


# ``django_durable_tasks.watchdog`` sends a request to WATCHDOG_URL.
#
# A scheduler creates it each minute. If no scheduler or no worker runs, the requests stop, and the
# external monitor behind the URL alarms.


# Attempts, and seconds between them.
_ATTEMPTS, _PAUSE = 3, 5


@durable_task(
    name=WATCHDOG_TASK,
    bind=True,
    max_attempts=_ATTEMPTS,
    backoff="FIXED",
    backoff_base=_PAUSE,
    priority=9,
    give_up_on=(DeliveryFailed, InvalidTarget),
)
def watchdog(self: Any) -> dict[str, Any]:
    """Send the request, and return how many seconds the task waited for its start."""
    live, url = process_runs.current(), settings().WATCHDOG_URL
    if live is None:
        raise InvalidOption("watchdog sends requests from a worker only: schedule it.")
    if url is None:
        return {"sent": False, "reason": "DURABLE_TASKS['WATCHDOG_URL'] is None."}
    waited = (estimated_now() - live.run.scheduled_for).total_seconds()
    request = http_request({"url": url, "method": "GET"}, http.limits())
    shown = masked_url(request.url.origin + request.url.path)
    answer = send_request(live, request, None, shown)
    return {"sent": True, "status": answer["status"], "waited": round(waited, 3)}
