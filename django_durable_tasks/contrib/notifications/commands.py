"""``durable notify`` lists notification settings and sends tests."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Mapping
from typing import Any

from django_durable_tasks.choices import Status
from django_durable_tasks.command import subcommand as cli
from django_durable_tasks.contrib.notifications import deliveries
from django_durable_tasks.contrib.notifications.models import NotificationSetting
from django_durable_tasks.exceptions import EncryptionError
from django_durable_tasks.store import tables

_COLUMNS = ("name", "tenant", "enabled", "events", "delivery_type", "to", "last_delivery", "at")
_SHOWN = 1_000
_DEFAULT = "default"
_POLL, _WAIT = 0.2, 60.0
_idle = threading.Event()
"""Never set: waiting for it is a pause."""


@cli.subcommand(
    cli.argument("action", choices=("list", "test"), help="What to do."),
    cli.argument("name", metavar="NAME", nargs="?", help="The name of the setting to test."),
    cli.argument("--tenant", metavar="SLUG", help="The slug of the tenant."),
    cli.argument(
        "--wait",
        type=float,
        default=_WAIT,
        metavar="SECONDS",
        help=f"How long to wait for the result of the test. Default: {_WAIT:g}.",
    ),
    operations=(deliveries.create_test,),
)
def notify(options: cli.Options, out: cli.Output) -> int:
    """List the notification settings, or test one.

    Examples:
        notify list
        notify test ops
        notify test invoices --tenant acme --wait 10
    """
    if options["action"] == "test":
        if not options["name"]:
            cli.refuse("Name a notification setting: durable notify test ops.")
        matching = list(
            _rows({**options, "tenant": options["tenant"] or _DEFAULT}).filter(name=options["name"])
        )
        if not matching:
            cli.refuse(f"The tenant has no notification setting {options['name']!r}.")
        outcome = cli.perform(deliveries.create_test, matching[0], options)
        out.note(outcome.message)
        # The result of the task, or its present state after this time.
        deadline, task_id = time.monotonic() + options["wait"], outcome.value
        columns = ("status", "result", "last_error", "attempts")
        while True:
            task = tables.tasks().filter(pk=task_id).values(*columns)
            state: Mapping[str, Any] = task.first() or {}
            status, tried = state.get("status", "DELETED"), state.get("attempts", 0) > 0
            done = status not in (Status.PENDING, Status.QUEUED, Status.RUNNING)
            if done or (tried and status == Status.PENDING) or time.monotonic() >= deadline:
                break
            _idle.wait(_POLL)
        sent = status == Status.SUCCESS and bool((state.get("result") or {}).get("sent"))
        result = {"sent": sent, "status": status, "error": state.get("last_error", "")}
        data = {"command": "notify", "setting": options["name"], "task": outcome.value, **result}
        text = _sentence(outcome.value, result)
        return out.emit(data, text, cli.OK if result["sent"] else cli.UNHEALTHY)
    rows = []
    for row in _rows(options).order_by("tenant_id", "name")[:_SHOWN]:
        try:
            shown = row.shown_config
            to = shown.get("url") or shown.get("to")
        except EncryptionError as error:
            to = str(error)
        rows.append(
            {
                "name": row.name,
                "tenant": row.tenant.slug,
                "enabled": row.enabled,
                "events": row.events,
                "delivery_type": row.delivery_type,
                "to": to,
                "last_delivery": row.last_delivery_status,
                "at": row.last_delivery_at,
            }
        )
    out.note_if_cut(rows, _SHOWN)
    return out.emit(rows, cli.table(_COLUMNS, rows, "there are no notification settings"))


def _rows(options: cli.Options) -> Any:
    if options["tenant"] is not None:
        cli.tenant_named(options["tenant"])
    rows = NotificationSetting.objects.using(tables.database()).select_related("tenant")
    return cli.filtered(rows, options, {"tenant": "tenant__slug"})


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
