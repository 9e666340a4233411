"""Accounts of customers who use the scheduler over HTTP: a tenant, its quotas, its limit, its key.

Each call of ``durable`` is a command that an operator can type as well: ``manage.py durable …``.
"""

import io
import json
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.core.management import call_command

from django_durable_tasks.models import Tenant

SCOPES = "read,create,operate,schedules,notifications"
OPEN_TASKS = 8


@dataclass(frozen=True)
class Account:
    """An account with its key, which cannot be read again."""

    tenant: Tenant
    key: str


def open_account(slug: str, name: str) -> Account:
    """Open an account, or give an existing one a new key and revoke the former one."""
    tenant, _ = Tenant.objects.get_or_create(slug=slug, defaults={"name": name})
    why = ("--by", "billing", "--reason", f"contract with {name}")
    quotas = ("--open-tasks", str(OPEN_TASKS), "--recurring-tasks", "5", "--requests", "600/m")
    durable("quota", slug, *quotas, *why)
    # Tasks beyond this limit wait, so that one customer cannot occupy all workers.
    durable("limit", "set", f"tenant:{tenant.pk}", "--max-concurrency", "2", *why)
    for former in durable("api-key", "list", "--tenant", slug):
        if former["state"] == "live":
            durable("api-key", "revoke", former["key"], "--yes", *why)
    created = durable(
        "api-key", "create", "--tenant", slug, "--name", name, "--scopes", SCOPES, *why
    )
    return Account(tenant, created["key"])


def signing_secrets(slug: str, url: str, endpoint: str = "") -> list[str]:
    """Return the secrets with which the receiver at ``url`` checks the signatures of requests."""
    named = ("--endpoint", endpoint) if endpoint else ()
    found: list[str] = durable("signing-secret", url, "--tenant", slug, *named)["secrets"]
    return found


def queue_of(slug: str) -> str:
    """Return the name of the queue from which a customer reads its messages."""
    return f"{settings.QUEUE_PREFIX}customer.{slug}"


def durable(*arguments: str) -> Any:
    """Run ``manage.py durable`` and return the JSON that it writes; raises CommandError."""
    out = io.StringIO()
    call_command("durable", *arguments, "--format", "json", stdout=out, stderr=io.StringIO())
    return json.loads(out.getvalue())
