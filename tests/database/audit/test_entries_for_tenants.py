"""A key of a tenant does not see what operators write for each other."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User

from django_durable_tasks.contrib.api import access, quotas
from django_durable_tasks.models import AuditEntry
from tests.database.api.client import SETTINGS, ApiClient, a_client, a_tenant, call

pytestmark = pytest.mark.django_db
NAME, REASON = "root-of-os", "late with payments, ticket 4711"


@pytest.fixture
def client(settings: Any) -> ApiClient:
    """Return the client of a tenant for which operators did everything that names them."""
    settings.DURABLE_TASKS = dict(SETTINGS)
    client = a_client(a_tenant("acme"))
    given = {"by": NAME, "reason": REASON}
    quotas.set_quotas(client.tenant, open_tasks=5, **given)
    User.objects.create_user("bob-staff", is_staff=True)
    access.assign_staff(client.tenant, "bob-staff", **given)
    client.post("/tasks", call())
    return client


@pytest.mark.parametrize("query", ["", "?actor=operator", f"?actor={NAME}", "?object_type=tenant"])
def test_no_name_and_no_reason_of_an_operator_is_shown(client: ApiClient, query: str) -> None:
    assert AuditEntry.objects.filter(reason=REASON, actor=NAME).count() >= 2
    answer = client.get(f"/audit{query}")
    assert answer.status_code == 200
    text = answer.content.decode()
    assert not [word for word in (REASON, "bob-staff") if word in text]
    entries = answer.json()["data"]
    assert NAME not in str(entries)
    assert bool(entries) == (NAME not in query)


def test_the_entries_of_the_tenants_keys_name_the_key(client: ApiClient) -> None:
    (own,) = [one for one in client.get("/audit").json()["data"] if one["actor"] != "operator"]
    assert own["operation"] == "task.create"
    assert client.get(f"/audit?actor={own['actor']}").json()["data"] == [own]
