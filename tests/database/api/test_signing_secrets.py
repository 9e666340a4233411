"""A tenant reads the secrets with which its server checks our signatures, and no others."""

from __future__ import annotations

from typing import Any

import pytest

from django_durable_tasks.contrib.api.models import IdempotentRequest
from django_durable_tasks.models import AuditEntry, Task
from django_durable_tasks.targets.http_request import derived_secret, verify
from tests.database.api.client import SETTINGS, ApiClient, a_client
from tests.database.api.test_staff_sessions import a_user, send
from tests.database.notifications.sending import SETTINGS as SENDING
from tests.database.notifications.sending import a_setting, a_webhook, run
from tests.http_servers import answer, answering, listening

pytestmark = pytest.mark.django_db
KEYS = ["k" * 40, "o" * 40]
ORIGIN = "https://example.com"
PATH = f"/signing-secret?url={ORIGIN}/hook"


@pytest.fixture(autouse=True)
def requests_are_signed(api_is_open: None, settings: Any) -> None:
    """Set a present and a former signing key."""
    tasks = ["django_durable_tasks.http_callback"]
    settings.DURABLE_TASKS = {**SETTINGS, **SENDING, "HTTP_SIGNING_KEYS": KEYS, "API_TASKS": tasks}


def _secrets(client: ApiClient, endpoint: str, origin: str = ORIGIN) -> list[str]:
    return [derived_secret(key, client.tenant.pk, origin, endpoint) for key in KEYS]


def test_the_secrets_are_those_of_the_tenant_and_of_the_endpoint(
    acme: ApiClient, globex: ApiClient
) -> None:
    assert acme.get(PATH).json() == {
        "origin": ORIGIN,
        "endpoint": ORIGIN,
        "secrets": _secrets(acme, ORIGIN),
    }
    named = acme.get(f"{PATH}&endpoint=orders").json()
    assert (named["endpoint"], named["secrets"]) == ("orders", _secrets(acme, "orders"))
    assert not set(globex.get(PATH).json()["secrets"]) & set(_secrets(acme, ORIGIN))


@pytest.mark.django_db(transaction=True)
def test_they_verify_a_callback_and_a_notification_that_were_sent(acme: ApiClient) -> None:
    with listening(answering(answer(body=b"ok"))) as server:
        body = {"target_type": "HTTP_CALLBACK", "target_config": {"url": server.url("/hook")}}
        made = acme.post("/tasks", body)
        assert made.status_code == 201, made.content
        setting = a_webhook(server.url("/events"), tenant=acme.tenant)
        path = f"/notification-settings/{setting.pk}"
        test = acme.post(f"{path}/test").json()["task_id"]
        addresses = {made.json()["task_id"]: f"/signing-secret?url={server.url('/')}"}
        addresses[test] = f"{path}/signing-secret"
        for number, (task_id, address) in enumerate(addresses.items()):
            run(Task.objects.get(pk=task_id))
            headers, secrets = server.headers(number), acme.get(address).json()["secrets"]
            for secret in secrets:
                now = float(headers["webhook-timestamp"])
                assert verify(headers, server.body(number), [secret], now)


def test_a_key_needs_the_scope_and_a_user_the_permission(acme: ApiClient, settings: Any) -> None:
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "API_SESSIONS": True}
    setting = a_webhook(f"{ORIGIN}/hook", tenant=acme.tenant)
    reader = a_client(acme.tenant, "read", "create", "notifications")
    user, trusted = (
        a_user("view_notificationsetting", *more) for more in ((), ("view_task_arguments",))
    )
    for path in (PATH, f"/notification-settings/{setting.pk}/signing-secret"):
        refused = reader.get(path)
        assert (refused.status_code, refused.json()["scope"]) == (403, "secrets")
        refused = send(user, "GET", path, tenant="acme")
        assert (refused.status_code, refused.json()["code"]) == (403, "permission_missing")
        assert not AuditEntry.objects.filter(operation="signing_secret.read").exists()
    assert send(trusted, "GET", path, tenant="acme").json()["secrets"]


def test_each_read_has_an_audit_entry_without_the_secret(acme: ApiClient) -> None:
    setting = a_webhook(f"{ORIGIN}/hook", tenant=acme.tenant)
    acme.get(PATH)
    acme.get(f"/notification-settings/{setting.pk}/signing-secret")
    of_setting, of_callbacks = acme.get("/audit?operation=signing_secret.read").json()["data"]
    assert (of_callbacks["object_type"], of_callbacks["object_id"]) == (
        "tenant",
        str(acme.tenant.pk),
    )
    assert of_callbacks["after"] == {"origin": ORIGIN, "endpoint": ORIGIN}
    assert (of_callbacks["source"], of_callbacks["address"]) == ("API", "127.0.0.1")
    assert of_callbacks["actor"].startswith("API key ddt_")
    assert (of_setting["object_type"], of_setting["object_id"]) == (
        "notification setting",
        str(setting.pk),
    )


def test_an_idempotency_key_does_not_store_them(acme: ApiClient) -> None:
    setting = a_webhook(f"{ORIGIN}/hook", tenant=acme.tenant)
    for path in (PATH, f"/notification-settings/{setting.pk}/signing-secret"):
        for _ in range(2):
            read = acme.get(path, Idempotency_Key="k")
            assert (read.status_code, "Idempotent-Replayed" in read.headers) == (200, False)
    assert not IdempotentRequest.objects.exists()


def test_there_is_none_for_an_email_or_without_a_key(acme: ApiClient, settings: Any) -> None:
    setting = a_setting(tenant=acme.tenant)
    assert acme.get(f"/notification-settings/{setting.pk}/signing-secret").json() == {
        "origin": None,
        "endpoint": f"notification-setting-{setting.pk}",
        "secrets": [],
    }
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "HTTP_SIGNING_KEYS": []}
    assert acme.get(PATH).json()["secrets"] == []
    assert not AuditEntry.objects.filter(operation="signing_secret.read").exists()


@pytest.mark.parametrize(
    ("query", "parameter"),
    [
        ("", "url"),
        ("?url=", "url"),
        ("?url=ftp://example.com", "url"),
        ("?url=https://user@example.com", "url"),
        (f"?url={ORIGIN}&endpoint=", "endpoint"),
        (f"?url={ORIGIN}&endpoint={'x' * 201}", "endpoint"),
        (f"?url={ORIGIN}&endpoint=a%0Ab", "endpoint"),
    ],
)
def test_a_wrong_parameter_is_named(acme: ApiClient, query: str, parameter: str) -> None:
    refused = acme.get(f"/signing-secret{query}")
    assert refused.status_code == 400
    assert refused.json()["errors"][0]["parameter"] == parameter


@pytest.mark.parametrize("number", [1, 2, 33])
@pytest.mark.parametrize("rest", ["", "0", "x"])
def test_a_callback_cannot_use_the_secret_of_a_notification_setting(
    acme: ApiClient, number: int, rest: str
) -> None:
    name = f"notification-setting-{number}{rest}"
    assert acme.get(f"{PATH}&endpoint={name}").status_code == 400
    config = {"url": f"{ORIGIN}/hook", "endpoint": name}
    body = {"target_type": "HTTP_CALLBACK", "target_config": config}
    assert acme.post("/tasks", body).status_code == 422
    schedule = {**body, "name": "forged", "cron": "0 4 * * *"}
    assert acme.post("/recurring-tasks", schedule).status_code == 422
