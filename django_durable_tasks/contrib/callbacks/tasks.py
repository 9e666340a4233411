"""The durable tasks ``django_durable_tasks.http_callback`` and
``django_durable_tasks.queue_message``.
"""

from __future__ import annotations

import json
import logging
import random
import re
import uuid
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from kombu.serialization import registry as serializers

from django_durable_tasks import conf, registry
from django_durable_tasks.celery.live_runs import LiveRun, process_runs
from django_durable_tasks.celery.prepared_messages import refuse_task_queues
from django_durable_tasks.celery.publisher import BrokerConnection, borrowed
from django_durable_tasks.choices import TargetType
from django_durable_tasks.conf import TENANT
from django_durable_tasks.contrib.callbacks import endpoints, http
from django_durable_tasks.contrib.callbacks.http import CallFailed
from django_durable_tasks.contrib.callbacks.models import DeliveryAttempt
from django_durable_tasks.decorators import durable_task
from django_durable_tasks.exceptions import (
    BrokerUnavailable,
    DeliveryFailed,
    DeliveryStopped,
    InvalidOption,
    InvalidTarget,
    MessageRejected,
    about,
)
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
from django_durable_tasks.targets import answers, http_request
from django_durable_tasks.targets.addresses import parsed_url
from django_durable_tasks.targets.answers import AnswerKind, AnswerMeaning
from django_durable_tasks.task_values import Run
from django_durable_tasks.tasks.options import Retry, checked_headers

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
    max_attempts=len(answers.BACKOFF) + 1,
    backoff=answers.BACKOFF,
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
    request = http_request.http_request(live.kwargs, http.limits())
    key = http_request.endpoint_key(live.run.tenant_id, live.kwargs)
    return send_request(live, request, key)


def _check_url_of_tenant(arguments: Mapping[str, Any], tenant: str) -> None:
    """The check of every call does not know the tenant, for which HTTP_ALLOW may have entries."""
    url = arguments.get("url")
    if isinstance(url, str) and conf.names_tenants("HTTP_ALLOW"):
        http.policy(tenant).check(parsed_url(url))


def _http_callback_prepared(arguments: Mapping[str, Any]) -> dict[str, Any]:
    http_request.http_request(arguments, http.limits())
    return http_request.stored_arguments(arguments)


registry.declare_target(
    HTTP_CALLBACK_TASK,
    TaskTarget(
        TargetType.HTTP_CALLBACK,
        _http_callback_prepared,
        http_request.endpoint_key,
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
    live: LiveRun,
    request: http_request.HttpRequest,
    key: str | None,
    shown_url: str | None = None,
) -> dict[str, Any]:
    """Send the request of a run once, record it, and return its result.

    ``key``: of its endpoint, whose health is recorded. ``shown_url``: the URL without secrets, if
    it has others than those that ``masked_url`` finds.
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
        names = answers.by_name(exchange.headers, now)
        meaning = answers.interpret(exchange.status, names, request.retried, now)
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
        answers.delay(answers.BACKOFF, run.failures + 1, meaning.retry_after, random.random())
        if retried
        else 0.0
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
        url=shown_url or masked_url(request.url.origin + request.url.path),
        endpoint=request.endpoint,
        request_headers=http_request.masked_headers(request.headers.items(), secret_names),
        request_bytes=len(request.body),
        status=exchange.status if exchange else None,
        failure=failed.failure.value if failed else "",
        reason=meaning.reason,
        retry_delay=wait if retried and not is_last else None,
        response_headers=[
            [shortened(name, 200), shortened(value, 2_000)]
            for name, value in http_request.masked_headers(
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
# possible. The arguments are checked at the call and before each attempt. The worker checks them
# for the tenant of the task, whatever created the task.


# The most bytes of a name in AMQP, and characters of a content type, to which a charset is added.
_NAME_MAX, _CONTENT_TYPE_MAX = 255, 200
_EXCHANGE = "exchange:"
_SLUG = "[-a-zA-Z0-9_]+"
# C0 without the tab, DEL, C1 and the separators that some programs take for the end of a line.
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")
# Celery takes a message with the header `task` for a task, and reads the others of its protocol 2.
# Kombu decompresses a body by `compression`.
_OF_CELERY = frozenset(
    (
        "argsrepr",
        "chain",
        "children",
        "chord",
        "clock",
        "compression",
        "eta",
        "expires",
        "group",
        "group_index",
        "id",
        "ignore_result",
        "kwargsrepr",
        "lang",
        "meth",
        "origin",
        "parent_id",
        "replaced_task_nesting",
        "retries",
        "root_id",
        "shadow",
        "stamped_headers",
        "stamps",
        "task",
        "taskset",
        "timelimit",
    )
)
# RabbitMQ also delivers the message to the queues that these headers name, which QUEUE_ALLOW does
# not check.
_OF_RABBITMQ = frozenset(("cc", "bcc"))
_OF_THIS_PACKAGE = "durable"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueMessage:
    """A message for another program. Without an exchange it goes to the queue ``routing_key``."""

    exchange: str
    routing_key: str
    body: str
    content_type: str
    headers: Mapping[str, Any]

    @property
    def place(self) -> str:
        """The destination, for messages."""
        if not self.exchange:
            return f"queue {self.routing_key!r}"
        return f"exchange {self.exchange!r} with routing key {self.routing_key!r}"


def checked_message(
    arguments: Mapping[str, Any], allowed: Collection[str], tenant: str | None = None
) -> QueueMessage:
    """Return the checked message; raises InvalidTarget.

    ``allowed``: the entries of QUEUE_ALLOW, names of queues and ``exchange:NAME``. ``tenant``: the
    slug for which ``{tenant}`` stands in them; None: any tenant.
    """
    queue, exchange = arguments.get("queue"), arguments.get("exchange")
    if (queue is None) == (exchange is None):
        raise InvalidTarget("Give either queue= or exchange= with routing_key=.")
    routing_key = arguments.get("routing_key")
    if queue is not None and routing_key is not None:
        raise InvalidTarget(
            f"routing_key={routing_key!r} needs exchange= instead of queue=.", option="routing_key"
        )
    if exchange is None:
        key = _name("queue", queue)
    else:
        key = "" if routing_key in (None, "") else _name("routing_key", routing_key)
    exchange_name = "" if exchange is None else _name("exchange", exchange)
    body = _text(arguments.get("body"))
    content_type = arguments.get("content_type")
    if content_type is None:
        is_text = isinstance(arguments.get("body"), str)
        content_type = "text/plain" if is_text else "application/json"
    # A program that forwards the message over HTTP may copy it into a header.
    elif (
        not isinstance(content_type, str)
        or not (content_type.isascii() and content_type.isprintable())
        or not 0 < len(content_type.strip()) <= len(content_type) <= _CONTENT_TYPE_MAX
    ):
        raise InvalidTarget.of(
            "content_type", content_type, "give a type such as application/json."
        )
    message = QueueMessage(
        exchange=exchange_name,
        routing_key=key,
        body=body,
        content_type=content_type,
        headers=_headers(arguments.get("headers")),
    )
    name = message.routing_key if exchange is None else message.exchange
    if not _is_allowed(name, allowed, tenant, is_exchange=exchange is not None):
        raise InvalidTarget(
            f"{message.place} is not allowed (DURABLE_TASKS['QUEUE_ALLOW']).",
            option="queue" if exchange is None else "exchange",
        )
    return message


def _is_allowed(
    name: str, allowed: Collection[str], tenant: str | None, *, is_exchange: bool
) -> bool:
    if not is_exchange and name.startswith(_EXCHANGE):
        return False  # entries with this prefix are exchanges
    entry = f"{_EXCHANGE}{name}" if is_exchange else name
    if entry in allowed:
        return TENANT not in entry
    patterns = [pattern for pattern in allowed if TENANT in pattern]
    if tenant is not None:
        return any(pattern.replace(TENANT, tenant) == entry for pattern in patterns)
    forms = (re.escape(pattern).replace(re.escape(TENANT), _SLUG) for pattern in patterns)
    return any(re.fullmatch(form, entry) for form in forms)


def _name(option: str, value: object) -> str:
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= _NAME_MAX:
        raise InvalidTarget.of(option, value, f"give 1 to {_NAME_MAX} printable characters.")
    return value


@about("body")
def _text(body: object) -> str:
    if isinstance(body, str):
        return body
    try:
        return json.dumps(body, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise InvalidTarget(f"body cannot be converted to JSON: {error}.") from None


# Bytes of a short string of AMQP 0-9-1, which the name of a header is.
_NAME_MAX = 255


@about("headers")
def _headers(value: object) -> Mapping[str, Any]:
    if value is None:
        return {}
    try:
        headers = checked_headers(value)
    except InvalidOption as invalid:
        raise InvalidTarget(str(invalid)) from None
    for name, content in headers.items():
        size = len(name.encode("utf-8", "surrogatepass"))
        if not 0 < size <= _NAME_MAX:
            raise InvalidTarget(
                f"headers: {shortened(name, 40)!r} has {size:,} bytes; AMQP carries names of 1 to"
                f" {_NAME_MAX}."
            )
        # AMQP distinguishes case and Celery does too, but a program in between may not.
        lower = name.strip().lower().replace("-", "_")
        if lower in _OF_CELERY or lower.startswith(_OF_THIS_PACKAGE):
            raise InvalidTarget(
                f"headers has {name!r}, by which Celery or this package could take the message for"
                " a task: give the header another name."
            )
        if lower in _OF_RABBITMQ:
            raise InvalidTarget(
                f"headers has {name!r}, with which RabbitMQ delivers to further queues: create one"
                " message for each queue."
            )
        # A program that forwards the message over HTTP or STOMP may copy it into a header. A value
        # is not part of the error, because it may be a secret.
        if not name.isprintable() or _has_control_characters(content):
            raise InvalidTarget(f"headers: {name!r} or its value has control characters.")
    return headers


def _has_control_characters(value: object) -> bool:
    """Return whether a text in this JSON value has a control character other than a tab."""
    if isinstance(value, str):
        return _CONTROL.search(value) is not None
    if isinstance(value, Mapping):
        return any(map(_has_control_characters, chain(value, value.values())))
    return isinstance(value, list | tuple) and any(map(_has_control_characters, value))


# The connections are those of the publisher, but the channel is a new one: RabbitMQ closes a
# channel after an error, and a returned message leaves its confirmation unread.


_PERSISTENT = 2


def publish(message: QueueMessage, message_id: uuid.UUID, tenant: str | None = None) -> bool:
    """Publish the message once; return whether the broker has confirmed it. ``tenant``: the slug
    of the task's tenant, for which ``{tenant}`` stands in API_QUEUES.

    Raises MessageRejected if the broker refuses it or no queue would receive it, BrokerUnavailable
    if the broker does not respond, and InvalidTarget for a queue of Celery tasks.
    """
    refuse_task_queues(message.exchange, message.routing_key, tenant)
    try:
        with borrowed() as broker:
            return _publish(broker, message, str(message_id))
    except (MessageRejected, InvalidTarget):
        raise
    except Exception as error:
        raise BrokerUnavailable(
            f"The broker did not take a message for {message.place}: {type(error).__name__}."
        ) from error


def _publish(broker: BrokerConnection, message: QueueMessage, message_id: str) -> bool:
    content_type = message.content_type
    if ";" not in content_type:
        # Kombu decodes a body only if the content type is exactly one of its serializers, such as
        # ``application/json`` or pickle. With the parameter, no Celery worker decodes the body,
        # which otherwise would start a task by protocol 1 with ``{"task": name}``, and other
        # programs still read the same type.
        content_type = f"{content_type}; charset=utf-8"
    if content_type in serializers.type_to_name:
        raise InvalidTarget(f"content_type={content_type!r} is one that Celery workers decode.")
    channel = broker.connection.channel() if broker.driver == "amqp" else broker.channel
    prepared = channel.prepare_message(
        message.body,
        0,
        content_type,
        "utf-8",
        {**message.headers, "durable-task-id": message_id},
        {"message_id": message_id, "delivery_mode": _PERSISTENT},
    )
    try:
        if broker.driver == "amqp":
            # A message that no queue receives is returned before the confirmation, which raises a
            # channel error.
            channel.confirm_select()
            channel.basic_publish_confirm(
                prepared,
                exchange=message.exchange,
                routing_key=message.routing_key,
                mandatory=True,
                confirm_timeout=conf.settings().PUBLISH_TIMEOUT,
            )
            return True
        _check_bound(channel, message)
        channel.basic_publish(prepared, exchange=message.exchange, routing_key=message.routing_key)
    except broker.failures as error:
        if broker.is_lost(error):
            raise
        raise MessageRejected(f"{message.place}: {type(error).__name__}: {error}") from error
    finally:
        if broker.driver == "amqp" and channel.is_open and not broker.unusable:
            # If it fails, the connection is unusable, so that it is not shared.
            try:
                channel.close()
            except broker.failures:
                broker.unusable = True
    return False


def _check_bound(channel: Any, message: QueueMessage) -> None:
    """Refuse an exchange without a matching queue, which Kombu's own transports ignore."""
    if not message.exchange:
        return
    is_routed = getattr(channel, "is_routed", None)
    if is_routed is not None:  # a transport that stores bindings with their types
        if not is_routed(message.exchange, message.routing_key, message.headers):
            raise MessageRejected(f"{message.place}: no queue is bound to it.")
        return
    try:
        table = channel.get_table(message.exchange)
        if message.exchange not in channel.state.exchanges:
            # These brokers do not store the type of an exchange. Only topics have patterns.
            kind = "topic" if any(pattern for _, pattern, _ in table) else "direct"
            channel.exchange_declare(message.exchange, kind, durable=True)
        bound = channel.typeof(message.exchange).lookup(
            table, message.exchange, message.routing_key, None
        )
    except KeyError:
        bound = []
    if not bound:
        raise MessageRejected(f"{message.place}: no queue is bound to it.")


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
    named = any(TENANT in entry for entry in entries)
    tenant = self.durable.tenant.slug if named else None
    message = checked_message(live.kwargs, allowed, tenant)
    confirmed = publish(message, live.run.task_id, tenant)
    return {
        "exchange": message.exchange,
        "routing_key": message.routing_key,
        "confirmed": confirmed,
    }


def _queue_message_prepared(arguments: Mapping[str, Any]) -> dict[str, Any]:
    message = checked_message(arguments, conf.settings().QUEUE_ALLOW)
    refuse_task_queues(message.exchange, message.routing_key)
    if isinstance(arguments.get("body"), str):
        return dict(arguments)
    # The body is stored as text, because a database may change the order of keys in JSON.
    return {**arguments, "body": message.body, "content_type": message.content_type}


def _check_queue_of_tenant(arguments: Mapping[str, Any], tenant: str) -> None:
    # A reference to a result is not checked here. The worker checks the result.
    allowed = conf.settings().QUEUE_ALLOW
    names = {name: arguments.get(name) for name in ("queue", "exchange", "routing_key")}
    queue, exchange, routing_key = (
        name if isinstance(name, str) else "" for name in names.values()
    )
    for option in ("queue", "exchange"):
        name, is_exchange = names[option], option == "exchange"
        if isinstance(name, str) and not _is_allowed(
            name, allowed, tenant, is_exchange=is_exchange
        ):
            raise InvalidTarget(
                f"{option} {name!r} is not allowed (DURABLE_TASKS['QUEUE_ALLOW']).", option=option
            )
    if exchange or queue:
        refuse_task_queues(exchange, routing_key if exchange else queue, tenant)


registry.declare_target(
    QUEUE_MESSAGE_TASK,
    TaskTarget(
        TargetType.QUEUE_MESSAGE, _queue_message_prepared, check_tenant=_check_queue_of_tenant
    ),
)
