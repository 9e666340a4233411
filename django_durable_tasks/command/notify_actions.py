"""``durable notify``, ``durable check-url`` and ``durable signing-secret``."""

from __future__ import annotations

import threading
import time
import uuid
from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any

from django_durable_tasks import conf
from django_durable_tasks.callbacks import http
from django_durable_tasks.callbacks.http import Deadline, LookupFailed
from django_durable_tasks.choices import Status
from django_durable_tasks.command.arguments import add_operations
from django_durable_tasks.command.subcommand import (
    OK,
    UNHEALTHY,
    Options,
    Output,
    Subcommand,
    by_and_reason,
    refuse,
    table,
)
from django_durable_tasks.exceptions import EncryptionError, InvalidTarget
from django_durable_tasks.models import DEFAULT_TENANT_ID, NotificationSetting, Tenant
from django_durable_tasks.notifications import deliveries, signing_secrets
from django_durable_tasks.targets.addresses import parsed_url

# ``durable notify``: list the notification settings, or send a test message and report what
# happened to it.


_COLUMNS = ("name", "tenant", "enabled", "events", "delivery_type", "to", "last_delivery", "at")
_SHOWN = 1_000
_DEFAULT = "default"
_POLL, _WAIT = 0.2, 60.0
_idle = threading.Event()
"""Never set: waiting for it is a pause."""


def notify(options: Options, out: Output) -> int:
    """List the notification settings, or test one."""
    return {"list": _list, "test": _test}[options["action"]](options, out)


def _rows(options: Options) -> Any:
    rows = NotificationSetting.objects.using(conf.settings().DATABASE).select_related("tenant")
    if options["tenant"] is None:
        return rows
    slug = options["tenant"]
    if not Tenant.objects.using(conf.settings().DATABASE).filter(slug=slug).exists():
        refuse(f"There is no tenant {slug!r}.")
    return rows.filter(tenant__slug=slug)


def _list(options: Options, out: Output) -> int:
    rows = [
        {
            "name": row.name,
            "tenant": row.tenant.slug,
            "enabled": row.enabled,
            "events": row.events,
            "delivery_type": row.delivery_type,
            "to": _to(row),
            "last_delivery": row.last_delivery_status,
            "at": row.last_delivery_at,
        }
        for row in _rows(options).order_by("tenant_id", "name")[:_SHOWN]
    ]
    out.emit(rows, table(_COLUMNS, rows, "there are no notification settings"))
    return OK


def _to(row: NotificationSetting) -> Any:
    """Return the masked destination, or why it cannot be decrypted."""
    try:
        shown = row.shown_config
    except EncryptionError as error:
        return str(error)
    return shown.get("url") or shown.get("to")


def _test(options: Options, out: Output) -> int:
    if not options["name"]:
        refuse("Name a notification setting: durable notify test ops.")
    found = list(
        _rows({**options, "tenant": options["tenant"] or _DEFAULT}).filter(name=options["name"])
    )
    if not found:
        refuse(f"The tenant has no notification setting {options['name']!r}.")
    outcome = deliveries.create_test.perform(found[0], **by_and_reason(options))
    out.note(outcome.message)
    result = _awaited(outcome.value, options["wait"])
    shown = {"command": "notify", "setting": options["name"], "task": outcome.value, **result}
    text = _sentence(outcome.value, result)
    out.emit(shown, text)
    return OK if result["sent"] else UNHEALTHY


def _awaited(task_id: uuid.UUID, seconds: float) -> dict[str, Any]:
    """Return the result of the task, or its present state after this time."""
    deadline = time.monotonic() + seconds
    while True:
        row: Mapping[str, Any] = deliveries.shown_result(task_id) or {}
        status, tried = row.get("status", "DELETED"), row.get("attempts", 0) > 0
        done = status not in (Status.PENDING, Status.QUEUED, Status.RUNNING)
        if done or (tried and status == Status.PENDING) or time.monotonic() >= deadline:
            sent = status == Status.SUCCESS and bool((row.get("result") or {}).get("sent"))
            return {"sent": sent, "status": status, "error": row.get("last_error", "")}
        _idle.wait(_POLL)


def _sentence(task_id: uuid.UUID, result: Mapping[str, Any]) -> str:
    if result["sent"]:
        return "The destination accepted the test message."
    if result["error"]:
        again = " It will be tried again." if result["status"] == Status.PENDING else ""
        return f"The test message was not accepted: {result['error']}{again}"
    if result["status"] in (Status.PENDING, Status.QUEUED):
        return (
            f"Task {task_id} has not started. Check that a scheduler and a worker of its queue run:"
            " durable status."
        )
    return f"Task {task_id} is {result['status']}."


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("action", choices=("list", "test"), help="What to do.")
    parser.add_argument("name", metavar="NAME", nargs="?", help="The name of the setting to test.")
    parser.add_argument("--tenant", metavar="SLUG", help="The slug of the tenant.")
    parser.add_argument(
        "--wait",
        type=float,
        default=_WAIT,
        metavar="SECONDS",
        help=f"How long to wait for the result of the test. Default: {_WAIT:g}.",
    )
    add_operations(parser, deliveries.create_test)


NOTIFY = Subcommand(
    name="notify",
    summary="or list the notification settings",
    operations=(deliveries.create_test,),
    examples=("notify list", "notify test ops", "notify test invoices --tenant acme --wait 10"),
    arguments=_arguments,
    run=notify,
)


# ``durable check-url``: whether an HTTP callback to a URL would be sent. ``durable
# signing-secret``: the secrets of its endpoint.


_LOOKUP_TIMEOUT = 10.0


def _check_url_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL")


def run(options: Options, out: Output) -> int:
    """Parse the URL, resolve its host and check each address. No request is sent."""
    rows: list[dict[str, object]] = []
    reason = ""
    try:
        url = parsed_url(options["url"])
        http.policy().check_port(url)
        found = http.client(DEFAULT_TENANT_ID).verdicts(url, Deadline(_LOOKUP_TIMEOUT))
    except (InvalidTarget, LookupFailed) as error:
        reason = str(error)
    else:
        rows = [{"address": str(one), "refused": why or ""} for one, why in found.items()]
        if any(why is not None for why in found.values()):
            reason = "An address of the host is refused. HTTP_ALLOW can allow it."
    text = f"REFUSED: {reason}" if reason else "allowed"
    if rows:
        text = f"{text}\n{table(('address', 'refused'), rows)}"
    out.emit({"allowed": not reason, "reason": reason, "addresses": rows}, text)
    return UNHEALTHY if reason else OK


def _secret_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL")
    parser.add_argument("--tenant", metavar="SLUG", help="the tenant of the callbacks")
    parser.add_argument("--endpoint", metavar="NAME", help="`endpoint=` of the callbacks")


def show_secrets(options: Options, out: Output) -> int:
    """Print the secrets of an endpoint, the current one first."""
    tenant_id = DEFAULT_TENANT_ID
    if options["tenant"]:
        tenant = Tenant.objects.filter(slug=options["tenant"]).first()
        if tenant is None:
            refuse(f"No tenant has the slug {options['tenant']!r}.")
        tenant_id = tenant.pk
    url, endpoint = options["url"], options["endpoint"] or None
    # An operator may read the secrets of notification settings too, by their names.
    found = signing_secrets.secrets_of_callbacks(
        tenant_id, url, endpoint, by="", is_setting=True
    ).secrets
    if not found:
        refuse("DURABLE_TASKS['HTTP_SIGNING_KEYS'] is empty: requests are not signed.")
    out.emit({"secrets": found}, "\n".join(found))
    return OK


CHECK_URL = Subcommand(
    name="check-url",
    summary=(
        "check whether an HTTP callback to a URL would be sent, with the reason for each address of"
        " its host; exit with 1 if it would be refused"
    ),
    examples=("check-url https://hooks.example.com/orders",),
    arguments=_check_url_arguments,
    run=run,
)
SIGNING_SECRET = Subcommand(
    name="signing-secret",
    summary=(
        "print the secrets with which the HTTP callbacks to an endpoint are signed, to be given to"
        " the receiver"
    ),
    examples=(
        "signing-secret https://hooks.example.com/orders",
        "signing-secret https://hooks.example.com --tenant acme --endpoint orders",
    ),
    arguments=_secret_arguments,
    run=show_secrets,
)
