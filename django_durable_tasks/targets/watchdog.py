"""``django_durable_tasks.watchdog`` sends a request to WATCHDOG_URL.

A scheduler creates it each minute. If no scheduler or no worker runs, the requests stop, and the
external monitor behind the URL alarms.
"""

from __future__ import annotations

from typing import Any

from django_durable_tasks import conf
from django_durable_tasks.celery.execution.live_runs import process_runs
from django_durable_tasks.decorators import durable_task
from django_durable_tasks.engine.db.clock_estimate import estimated_now
from django_durable_tasks.exceptions import DeliveryFailed, InvalidOption, InvalidTarget
from django_durable_tasks.rules.notifications.events import WATCHDOG_TASK
from django_durable_tasks.rules.targets.http_request import http_request
from django_durable_tasks.rules.tasks.masking import masked_url
from django_durable_tasks.targets.http import outgoing
from django_durable_tasks.targets.http_callback import RequestOfRun

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
    """Send the request. A POST contains how many seconds the task waited for its start."""
    live, settings = process_runs.current(), conf.settings()
    if live is None:
        raise InvalidOption("watchdog sends requests from a worker only: schedule it.")
    if settings.WATCHDOG_URL is None:
        return {"sent": False, "reason": "DURABLE_TASKS['WATCHDOG_URL'] is None."}
    waited = (estimated_now() - live.run.scheduled_for).total_seconds()
    arguments: dict[str, Any] = {"url": settings.WATCHDOG_URL, "method": settings.WATCHDOG_METHOD}
    if settings.WATCHDOG_METHOD == "POST":
        arguments["body"] = {"task_id": str(live.run.task_id), "waited": round(waited, 3)}
    request = http_request(arguments, outgoing.limits())
    shown = masked_url(request.url.origin + request.url.path)
    answer = RequestOfRun(live, request, None, shown).sent()
    return {"sent": True, "status": answer["status"], "waited": round(waited, 3)}
