"""``django_durable_tasks.watchdog`` sends a request to WATCHDOG_URL.

A scheduler creates it each minute. If no scheduler or no worker runs, the requests stop, and the
external monitor behind the URL alarms.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django_durable_tasks import conf, registry
from django_durable_tasks.celery.live_runs import process_runs
from django_durable_tasks.contrib.callbacks import http
from django_durable_tasks.contrib.callbacks.tasks import send_request
from django_durable_tasks.decorators import durable_task
from django_durable_tasks.exceptions import DeliveryFailed, InvalidOption, InvalidTarget
from django_durable_tasks.masking import masked_url
from django_durable_tasks.store.clock import estimated_now
from django_durable_tasks.targets.http_request import http_request
from django_durable_tasks.task_names import WATCHDOG_TASK
from django_durable_tasks.tasks import enqueue
from django_durable_tasks.tasks.new_task import Call
from django_durable_tasks.tasks.options import CallOptions

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
    live, settings = process_runs.current(), conf.settings()
    if live is None:
        raise InvalidOption("watchdog sends requests from a worker only: schedule it.")
    if settings.WATCHDOG_URL is None:
        return {"sent": False, "reason": "DURABLE_TASKS['WATCHDOG_URL'] is None."}
    waited = (estimated_now() - live.run.scheduled_for).total_seconds()
    request = http_request({"url": settings.WATCHDOG_URL, "method": "GET"}, http.limits())
    shown = masked_url(request.url.origin + request.url.path)
    answer = send_request(live, request, None, shown)
    return {"sent": True, "status": answer["status"], "waited": round(waited, 3)}


# Seconds. A probe that starts later would report that tasks start although they start late.
_USEFUL_FOR = 120.0


def create_probe(minute: datetime) -> None:
    """Create the probe of this minute, once, also if two schedulers do it."""
    options = CallOptions(
        idempotency_key=f"durable-watchdog-{int(minute.timestamp()) // 60}", expires_in=_USEFUL_FOR
    )
    enqueue.submit(Call(registry.get(WATCHDOG_TASK), (), {}, options))
