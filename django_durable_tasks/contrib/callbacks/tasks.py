"""The durable tasks ``django_durable_tasks.http_callback`` and
``django_durable_tasks.queue_message``.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from django_durable_tasks import conf, registry
from django_durable_tasks.celery.live_runs import LiveRun, process_runs
from django_durable_tasks.celery.routing import refuse_task_queues
from django_durable_tasks.choices import TargetType
from django_durable_tasks.contrib.callbacks import endpoints, http, queue_messages
from django_durable_tasks.contrib.callbacks.http import CallFailed
from django_durable_tasks.contrib.callbacks.models import DeliveryAttempt
from django_durable_tasks.decorators import durable_task
from django_durable_tasks.exceptions import DeliveryFailed, DeliveryStopped, InvalidOption
from django_durable_tasks.masking import masked_text, masked_url, shortened
from django_durable_tasks.models import Tenant
from django_durable_tasks.registry import (
    HTTP_CALLBACK_TASK,
    OWN_TASKS,
    QUEUE_MESSAGE_TASK,
    TaskTarget,
)
from django_durable_tasks.store import tables
from django_durable_tasks.store.clock import estimated_now
from django_durable_tasks.store.connections import dedicated_connection
from django_durable_tasks.targets.addresses import parsed_url
from django_durable_tasks.targets.answers import (
    BACKOFF,
    AnswerKind,
    AnswerMeaning,
    by_name,
    delay,
    interpret,
)
from django_durable_tasks.targets.http_request import (
    HttpRequest,
    endpoint_key,
    http_request,
    masked_headers,
    stored_arguments,
)
from django_durable_tasks.task_values import Run
from django_durable_tasks.tasks.options import Retry

# ``django_durable_tasks.http_callback`` sends an HTTP request to an outside server.
#
# It succeeds when the server answers 2xx. Every attempt is recorded as a DeliveryAttempt.


logger = logging.getLogger("django_durable_tasks.targets")
_RESULT_FRAME = 100


class DeliveryRetry(Retry):
    """The endpoint did not accept the request; another attempt follows unless none is left."""


@durable_task(
    name=HTTP_CALLBACK_TASK,
    bind=True,
    max_attempts=len(BACKOFF) + 1,
    backoff=BACKOFF,
    jitter=False,
    give_up_on=(DeliveryFailed,),
)
def http_callback(
    self: Any,
    *,
    url: str,
    method: str = "POST",
    headers: Mapping[str, str] | None = None,
    body: Any = None,
    timeout: float | None = None,
    retry_on: Sequence[int | str] | None = None,
    no_retry_on: Sequence[int | str] | None = None,
    endpoint: str | None = None,
) -> dict[str, Any]:
    """Send the request once; return status and first bytes of a 2xx answer.

    Raises DeliveryRetry or DeliveryFailed, and InvalidTarget if the settings no longer allow the
    request.
    """
    live = process_runs.current()
    if live is None:
        raise InvalidOption("http_callback sends requests from a worker only: schedule it.")
    # The kwargs of the run, with references replaced by results.
    request = http_request(live.kwargs, http.limits())
    key = endpoint_key(live.run.tenant_id, live.kwargs)
    shown_url = masked_url(request.url.origin + request.url.path)
    return send_request(live, request, key, shown_url)


def _check_url_of_tenant(arguments: Mapping[str, Any], tenant: str) -> None:
    """The check of every call does not know the tenant, for which HTTP_ALLOW may have entries."""
    url = arguments.get("url")
    if isinstance(url, str) and conf.names_tenants("HTTP_ALLOW"):
        http.policy(tenant).check(parsed_url(url))


def _http_callback_prepared(arguments: Mapping[str, Any]) -> dict[str, Any]:
    http_request(arguments, http.limits())
    return stored_arguments(arguments)


registry.declare_target(
    HTTP_CALLBACK_TASK,
    TaskTarget(
        TargetType.HTTP_CALLBACK,
        _http_callback_prepared,
        endpoint_key,
        endpoints.postpone,
        _check_url_of_tenant,
    ),
)


def database_of(live: LiveRun) -> AbstractContextManager[None]:
    """Use the worker's own connection. Celery closes that of the project after each task."""
    return nullcontext() if live.eager else dedicated_connection()


def slug_of(live: LiveRun, key: str) -> str | None:
    """Return the slug of the run's tenant; None if the entries of this setting are those of every
    tenant, which needs no statement.
    """
    if not conf.names_tenants(key):
        return None
    with database_of(live):
        return Tenant.objects.using(tables.database()).get(pk=live.run.tenant_id).slug


def send_request(
    live: LiveRun, request: HttpRequest, key: str | None, shown_url: str
) -> dict[str, Any]:
    """Send the request of a run once, record it, and return its result.

    ``key``: of its endpoint, whose health is recorded. ``shown_url``: the URL without secrets.
    Raises DeliveryRetry, DeliveryFailed or DeliveryStopped for an answer that means no success.
    """
    run, began = live.run, estimated_now()
    request = replace(request, headers=http.headers_of(request, run, began))
    exchange = failed = None
    try:
        exchange = http.client(run.tenant_id, slug_of(live, "HTTP_ALLOW")).send(request)
    except CallFailed as error:
        failed = error
    # Outside of the handler: the log of the attempt keeps the traceback of the exception with
    # its context, and a tenant must not learn why a server could not be reached.
    if exchange is not None:
        now = estimated_now()
        names = by_name(exchange.headers, now)
        meaning = interpret(exchange.status, names, request.retried, now)
        timings, text = exchange.timings, exchange.body.decode("utf-8", "backslashreplace")
        body = shortened(text, 4 * len(exchange.body) + 16)
    else:
        assert failed is not None  # noqa: S101 - without an answer there is an error
        logger.warning(
            "Attempt %d of task %s has no answer of %s: %s (%s)",
            run.attempt,
            run.task_id,
            request.url.origin,
            failed.failure,
            failed.detail,
            extra={"task_id": str(run.task_id), "attempt": run.attempt, "tenant": run.tenant_id},
        )
        meaning = AnswerMeaning(kind=AnswerKind.RETRY, reason=str(failed), slows_endpoint=True)
        timings, body = failed.timings, ""
    retried = meaning.kind is AnswerKind.RETRY
    wait = (
        delay(BACKOFF, run.failures + 1, meaning.retry_after, random.random()) if retried else 0.0
    )
    is_last = run.failures + 1 >= run.max_attempts
    secret_names = conf.settings().SECRET_NAMES
    attempt = DeliveryAttempt(
        task_id=run.task_id,
        tenant_id=run.tenant_id,
        attempt_number=run.attempt,
        run_id=run.run_id,
        started_at=began,
        outcome=(AnswerKind.FAILED if retried and is_last else meaning.kind).value,
        method=request.method,
        url=shown_url,
        endpoint=request.endpoint,
        request_headers=masked_headers(request.headers.items(), secret_names),
        request_bytes=len(request.body),
        status=exchange.status if exchange else None,
        failure=failed.failure.value if failed else "",
        reason=meaning.reason,
        retry_delay=wait if retried and not is_last else None,
        response_headers=[
            [shortened(name, 200), shortened(value, 2_000)]
            for name, value in masked_headers(
                exchange.headers[:100] if exchange else (), secret_names
            )
        ],
        response_body=masked_text(body, secret_names),
        response_truncated=exchange is not None and exchange.truncated,
        dns_seconds=timings.dns,
        connect_seconds=timings.connect,
        tls_seconds=timings.tls,
        first_byte_seconds=timings.first_byte,
        total_seconds=timings.total,
    )
    _record(live, attempt, key, meaning)
    text = f"{request.method} {request.url.origin}: {meaning.reason}"
    if retried:
        retry = DeliveryRetry(wait, text)
        # Notifications have a queue of their own.
        if run.name == HTTP_CALLBACK_TASK:
            retry.queue = conf.settings().HTTP_RETRY_QUEUE
        raise retry
    if meaning.kind is AnswerKind.STOP:
        raise DeliveryStopped(text)
    if exchange is None or meaning.kind is not AnswerKind.DONE:
        raise DeliveryFailed(text)
    # The start of the text whose JSON fits.
    kept = body
    max_bytes = conf.settings().RESULT_MAX_BYTES - _RESULT_FRAME
    while kept and (size := len(json.dumps(kept))) > max_bytes:
        kept = kept[: max(0, min(len(kept) - 1, len(kept) * max_bytes // size))]
    return {
        "status": exchange.status,
        "body": kept,
        "truncated": exchange.truncated or len(kept) < len(body),
    }


def _record(
    live: LiveRun, attempt: DeliveryAttempt, key: str | None, meaning: AnswerMeaning
) -> None:
    """Record the request and the health of the endpoint. An error must not cause another request,
    so it is logged only.
    """
    # In eager mode the caller may have an open transaction, which an error would break.
    savepoint: AbstractContextManager[Any] = tables.atomic() if live.eager else nullcontext()
    try:
        with database_of(live), savepoint:
            endpoints.record_delivery(attempt)
            if key is not None:
                _record_health(live.run, key, meaning)
    except Exception:  # a soft time limit, too
        hidden = {"id", "response_body", "response_headers", "encryption_key"}
        names = (column.attname for column in DeliveryAttempt._meta.concrete_fields)
        logger.exception(
            "The request of task %s was not recorded: %s",
            attempt.task_id,
            {name: getattr(attempt, name) for name in names if name not in hidden},
            extra={"task_id": str(attempt.task_id), "attempt": attempt.attempt_number},
        )


def _record_health(run: Run, key: str, meaning: AnswerMeaning) -> None:
    # A notification about a receiver of notifications would not arrive either.
    notified_run = None if run.name in OWN_TASKS else run
    if meaning.kind is AnswerKind.STOP and notified_run is not None:
        endpoints.stopped(key, run.tenant_id, meaning.reason, notified_run)
    elif not meaning.slows_endpoint:
        endpoints.succeeded(key)
    elif pause := endpoints.failed(key, run.tenant_id, meaning.reason, notified_run):
        logger.warning(
            "Callbacks to %s wait for %g s: %s",
            key,
            pause,
            meaning.reason,
            extra={"tenant": run.tenant_id},
        )


# ``django_durable_tasks.queue_message`` publishes a message for another program.
#
# It succeeds when the broker has taken the message. Only queues and exchanges of QUEUE_ALLOW are
# possible. The worker checks them for the tenant of the task, whatever created the task.


_ATTEMPTS, _BACKOFF_MAX = 12, 3_600


@durable_task(name=QUEUE_MESSAGE_TASK, bind=True, max_attempts=_ATTEMPTS, backoff_max=_BACKOFF_MAX)
def queue_message(
    self: Any,
    *,
    queue: str | None = None,
    exchange: str | None = None,
    routing_key: str | None = None,
    body: Any = None,
    headers: Mapping[str, Any] | None = None,
    content_type: str | None = None,
) -> dict[str, Any]:
    """Publish the message once. Raises MessageRejected, BrokerUnavailable or InvalidTarget."""
    live = process_runs.current()
    if live is None:
        raise InvalidOption("queue_message publishes from a worker only: schedule it.")
    # The kwargs of the run, with references replaced by results.
    allowed = conf.settings().QUEUE_ALLOW
    entries = (*allowed, *conf.settings().API_QUEUES)
    named = any(conf.TENANT in entry for entry in entries)
    tenant = self.durable.tenant.slug if named else None
    message = queue_messages.queue_message(live.kwargs, allowed, tenant)
    confirmed = queue_messages.publish(message, live.run.task_id, tenant)
    return {
        "exchange": message.exchange,
        "routing_key": message.routing_key,
        "confirmed": confirmed,
    }


def _queue_message_prepared(arguments: Mapping[str, Any]) -> dict[str, Any]:
    message = queue_messages.queue_message(arguments, conf.settings().QUEUE_ALLOW)
    refuse_task_queues(message.exchange, message.routing_key)
    return queue_messages.stored_message(arguments)


def _check_queue_of_tenant(arguments: Mapping[str, Any], tenant: str) -> None:
    queue_messages.refuse_other_tenants(arguments, conf.settings().QUEUE_ALLOW, tenant)
    names = (arguments.get(name) for name in ("exchange", "routing_key", "queue"))
    exchange, routing_key, queue = (name if isinstance(name, str) else "" for name in names)
    if exchange or queue:
        refuse_task_queues(exchange, routing_key if exchange else queue, tenant)


registry.declare_target(
    QUEUE_MESSAGE_TASK,
    TaskTarget(
        TargetType.QUEUE_MESSAGE, _queue_message_prepared, check_tenant=_check_queue_of_tenant
    ),
)
