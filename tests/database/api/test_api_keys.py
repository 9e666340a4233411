"""API keys are shown once, expire, are rotated and revoked, on the command line and in the admin."""

from __future__ import annotations

import re
import threading
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.utils import timezone

from django_durable_tasks.contrib.api import access
from django_durable_tasks.contrib.api.models import ApiKey
from django_durable_tasks.exceptions import InvalidOption, TransitionRefused
from django_durable_tasks.models import Tenant
from tests.database.api.client import ApiClient, a_tenant
from tests.database.commands.durable_command import durable, json_of

pytestmark = pytest.mark.django_db


def _issued(tenant: Tenant, **options: Any) -> access.IssuedKey:
    values = {"name": "billing", "scopes": ["read"], "now": timezone.now(), **options}
    return access.create_key(tenant, **values)


def _status(key: str) -> int:
    return int(ApiClient(Tenant(), key).get("/tasks").status_code)


def test_the_database_has_only_the_digest_of_a_key() -> None:
    issued = _issued(a_tenant())
    stored = " ".join(str(value) for value in ApiKey.objects.values_list()[0])
    assert issued.text not in stored
    assert issued.text.removeprefix(issued.row.prefix)[1:] not in stored


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer ",
        "Basic YTpi",
        "Bearer ddt_live_x",
        "Bearer " + "x" * 10_000,
        "Bearer \u20ac",
        "ddt_live_0a1b2c3d",
    ],
)
def test_a_key_that_cannot_be_read_is_refused(header: str) -> None:
    response = ApiClient(Tenant(), "").get("/tasks", Authorization=header)
    assert (response.status_code, response.json()["code"]) == (401, "unauthenticated")


def test_expired_revoked_and_unknown_keys_get_the_same_answer(acme: ApiClient) -> None:
    now, tenant = timezone.now(), acme.tenant
    expired = _issued(tenant, now=now - timedelta(days=2), expires_at=now - timedelta(days=1))
    revoked = _issued(tenant)
    access.revoke_key.perform(ApiKey.objects.filter(pk=revoked.row.pk), by="ada", reason="lost")
    unknown = _issued(tenant, name="other")
    ApiKey.objects.unguarded().filter(pk=unknown.row.pk).delete()
    details = {
        ApiClient(tenant, issued.text).get("/tasks").json()["detail"]
        for issued in (expired, revoked, unknown)
    }
    assert details == {"The API key is unknown, expired or revoked."}
    revoked.row.refresh_from_db()
    assert (revoked.row.revoked_by, revoked.row.reason) == ("ada", "lost")


def test_a_rotation_has_two_live_keys_and_no_third() -> None:
    tenant = a_tenant()
    first, second = _issued(tenant), _issued(tenant)
    assert [_status(issued.text) for issued in (first, second)] == [200, 200]
    with pytest.raises(TransitionRefused, match="2 live keys"):
        _issued(tenant)
    _issued(a_tenant("globex"))
    later = timezone.now() + timedelta(hours=1)
    access.revoke_key.perform(ApiKey.objects.filter(pk=first.row.pk), by="", reason="", at=later)
    assert _status(first.text) == 200
    access.revoke_key.perform(ApiKey.objects.filter(pk=first.row.pk), by="", reason="")
    assert [_status(issued.text) for issued in (first, second)] == [401, 200]
    assert _status(_issued(tenant).text) == 200


@pytest.mark.django_db(transaction=True)
def test_parallel_calls_do_not_create_a_third_key() -> None:
    tenant, done = a_tenant(), []

    def create() -> None:
        try:
            done.append(_issued(tenant))
        except TransitionRefused:
            return
        finally:
            connection.close()

    threads = [threading.Thread(target=create) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(done) == ApiKey.objects.count() == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": "x" * 101},
        {"scopes": []},
        {"scopes": ["root"]},
        {"mode": "prod"},
        {"expires_at": timezone.now() - timedelta(days=1)},
    ],
)
def test_a_bad_key_is_not_created(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(InvalidOption, match=name):
        _issued(a_tenant(), **wrong)


def test_the_last_use_is_recorded_at_most_once_a_minute(acme: ApiClient) -> None:
    def last() -> Any:
        return ApiKey.objects.get().last_used_at

    acme.get("/tasks")
    first = last()
    acme.get("/tasks")
    assert first is not None
    assert last() == first
    ApiKey.objects.unguarded().update(last_used_at=first - timedelta(minutes=2))
    acme.get("/tasks")
    assert last() >= first


def test_keys_are_created_listed_and_revoked_on_the_command_line() -> None:
    a_tenant("acme")
    made = json_of(
        "api-key", "create", "--tenant", "acme", "--name", "ci", "--scopes", "read, create"
    )
    assert _status(made["key"]) == 200
    (row,) = json_of("api-key", "list", "--tenant", "acme")
    assert (row["key"], row["scopes"], row["state"]) == (
        made["created"],
        ["read", "create"],
        "live",
    )
    assert made["key"] not in durable("api-key", "list").out
    assert durable("api-key", "revoke", made["created"], "--yes", "--reason", "lost").code == 0
    assert _status(made["key"]) == 401
    assert durable("api-key", "revoke", made["created"], "--yes").code == 2
    for words in (
        ("create", "--tenant", "nowhere", "--name", "x"),
        ("create",),
        ("create", "--name", "x", "--scopes", "root"),
        ("revoke",),
    ):
        assert durable("api-key", *words).code == 2


def test_the_admin_shows_a_new_key_once(admin_client: Client) -> None:
    tenant = a_tenant()
    form = {"tenant": tenant.pk, "name": "ci", "scopes": ["read"], "mode": "live"}
    address = "/admin/durable_tasks_api/apikey/"
    shown = admin_client.post(f"{address}add/", form, follow=True).content.decode()
    (key,) = re.findall(r"ddt_live_[0-9a-z]{8}_[\w-]{49}", shown)
    assert _status(key) == 200
    row = ApiKey.objects.get()
    assert row.created_by == User.objects.get().username
    for page in (address, f"{address}{row.pk}/change/"):
        content = admin_client.get(page).content.decode()
        assert row.prefix in content
        assert key not in content
        assert row.digest not in content
