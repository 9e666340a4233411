"""``durable check-url`` and ``durable signing-secret``."""

from __future__ import annotations

from typing import Any

import pytest

from django_durable_tasks.models import AuditEntry, Tenant
from django_durable_tasks.targets.http_request import derived_secret
from tests.database.commands.durable_command import durable, json_of

pytestmark = pytest.mark.django_db


def test_a_public_address_is_allowed() -> None:
    assert json_of("check-url", "https://8.8.8.8/hook") == {
        "allowed": True,
        "reason": "",
        "addresses": [{"address": "8.8.8.8", "refused": ""}],
    }


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://localhost/", "loopback"),
        ("http://10.0.0.1/", "private"),
        ("http://169.254.169.254/", "link-local"),
        ("http://example.com:22/", "port 22 is not allowed"),
        ("ftp://example.com/", "must begin with http"),
        ("http://name.invalid/", "was not resolved"),
    ],
)
def test_a_refused_url_is_shown_with_its_reason(url: str, reason: str) -> None:
    answer = durable("check-url", url)
    assert (answer.code, answer.out.startswith("REFUSED")) == (1, True)
    assert reason in answer.out


def test_the_allow_list_of_the_settings_counts(settings: Any) -> None:
    settings.DURABLE_TASKS = {"HTTP_ALLOW": ["localhost:8000"]}
    assert durable("check-url", "http://localhost:8000/").code == 0
    assert durable("check-url", "http://localhost:8001/").code == 1


def test_the_signing_secrets_are_those_of_the_endpoint(settings: Any) -> None:
    keys = ["k" * 40, "o" * 40]
    settings.DURABLE_TASKS = {"HTTP_SIGNING_KEYS": keys}
    tenant = Tenant.objects.create(slug="acme", name="Acme")
    origin = "https://example.com"
    assert json_of("signing-secret", f"{origin}/hook", "--tenant", "acme") == {
        "secrets": [derived_secret(key, tenant.pk, origin, origin) for key in keys]
    }
    assert durable("signing-secret", origin, "--endpoint", "x").out.split() == [
        derived_secret(key, 1, origin, "x") for key in keys
    ]
    assert durable("signing-secret", origin, "--tenant", "none").code == 2
    entries = list(AuditEntry.objects.filter(operation="signing_secret.read").order_by("pk"))
    assert [(entry.source, entry.object_id) for entry in entries] == [
        ("COMMAND", str(tenant.pk)),
        ("COMMAND", "1"),
    ]
    settings.DURABLE_TASKS = {}
    assert "HTTP_SIGNING_KEYS" in durable("signing-secret", origin).err
