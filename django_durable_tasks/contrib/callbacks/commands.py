"""``durable check-url`` and ``durable signing-secret``."""

from __future__ import annotations

from typing import Any

from django_durable_tasks.choices import TargetType
from django_durable_tasks.command import subcommand as cli
from django_durable_tasks.contrib.callbacks import http
from django_durable_tasks.contrib.callbacks.http import Deadline, LookupFailed, secrets_of_callbacks
from django_durable_tasks.contrib.callbacks.models import DeliveryAttempt
from django_durable_tasks.exceptions import InvalidTarget
from django_durable_tasks.models import DEFAULT_TENANT_ID, Task
from django_durable_tasks.targets.addresses import parsed_url

# ``durable check-url``: whether an HTTP callback to a URL would be sent. ``durable
# signing-secret``: the secrets of its endpoint.


_LOOKUP_TIMEOUT = 10.0


@cli.subcommand(cli.argument("url", metavar="URL"))
def check_url(options: cli.Options, out: cli.Output) -> int:
    """Check whether an HTTP callback to a URL would be sent, with the reason for each address of
    its host; exit with 1 if it would be refused.

    Examples:
        check-url https://hooks.example.com/orders
    """
    rows: list[dict[str, object]] = []
    reason = ""
    try:
        url = parsed_url(options["url"])
        http.policy().check_port(url)
        verdicts = http.client(DEFAULT_TENANT_ID).verdicts(url, Deadline(_LOOKUP_TIMEOUT))
    except (InvalidTarget, LookupFailed) as error:
        reason = str(error)
    else:
        rows = [
            {"address": str(address), "refused": why or ""} for address, why in verdicts.items()
        ]
        if any(why is not None for why in verdicts.values()):
            reason = "An address of the host is refused. HTTP_ALLOW can allow it."
    text = f"REFUSED: {reason}" if reason else "allowed"
    if rows:
        text = f"{text}\n{cli.table(('address', 'refused'), rows)}"
    return out.emit(
        {"allowed": not reason, "reason": reason, "addresses": rows},
        text,
        cli.UNHEALTHY if reason else cli.OK,
    )


@cli.subcommand(
    cli.argument("url", metavar="URL"),
    cli.argument("--tenant", metavar="SLUG", help="the tenant of the callbacks"),
    cli.argument("--endpoint", metavar="NAME", help="`endpoint=` of the callbacks"),
)
def signing_secret(options: cli.Options, out: cli.Output) -> int:
    """Print the secrets with which the HTTP callbacks to an endpoint are signed, to be given to the
    receiver; the current one is the first.

    Examples:
        signing-secret https://hooks.example.com/orders
        signing-secret https://hooks.example.com --tenant acme --endpoint orders
    """
    slug = options["tenant"]
    tenant_id = cli.tenant_named(slug).pk if slug else DEFAULT_TENANT_ID
    url, endpoint = options["url"], options["endpoint"] or None
    # An operator may read the secrets of notification settings too, by their names.
    secrets = secrets_of_callbacks(tenant_id, url, endpoint, by="", is_setting=True).secrets
    if not secrets:
        cli.refuse("DURABLE_TASKS['HTTP_SIGNING_KEYS'] is empty: requests are not signed.")
    return out.emit({"secrets": secrets}, "\n".join(secrets))


# The requests of a task in ``durable show``.

REQUEST_COLUMNS = ("attempt_number", "outcome", "status", "failure", "started_at", "method", "url")
_DETAILS = ("reason", "retry_delay", "total_seconds", "response_body")


def requests_of(task: Task) -> list[dict[str, Any]]:
    """Return the HTTP requests of the task. Other tasks cost no statement."""
    if task.target_type != TargetType.HTTP_CALLBACK:
        return []
    rows = DeliveryAttempt.objects.using(task._state.db).filter(task=task)
    return list(rows.order_by("pk").values(*REQUEST_COLUMNS, *_DETAILS))
