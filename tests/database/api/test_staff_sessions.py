"""Staff users use the API with their session: with the permissions of their user, a CSRF token for
each write, and only for the tenants that are assigned to them.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from django_durable_tasks.contrib.api import access
from django_durable_tasks.contrib.api.models import StaffTenant
from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.models import AuditEntry, Task
from django_durable_tasks.store import tables
from tests.database.api.client import ROOT, ApiClient, a_tenant, call
from tests.database.api.endpoints import (
    VALID,
    WITH_ID,
    WITHOUT_ID,
    filled,
    methods,
    patterns,
    rows_of,
)
from tests.database.commands.durable_command import durable, json_of
from tests.factories import a_task, many_tasks

pytestmark = pytest.mark.django_db
_number = itertools.count(1)
SHARED = ("queues", "scheduler/status", "metrics")


@pytest.fixture(autouse=True)
def sessions_are_open(api_is_open: None, settings: Any) -> None:
    """Accept sessions."""
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "API_SESSIONS": True}


def a_user(*permissions: str, **fields: Any) -> User:
    """Create a staff user with these permissions; ``all`` for all of them."""
    user = User.objects.create_user(f"staff{next(_number)}", **{"is_staff": True, **fields})
    rows = Permission.objects.filter(content_type__app_label__contains="durable_tasks")
    if permissions != ("all",):
        rows = rows.filter(codename__in=permissions)
        assert len(rows) == len(permissions)
    user.user_permissions.set(rows)
    return user


def send(
    user: User, method: str, path: str, body: Any = None, tenant: str = "", **headers: str
) -> Any:
    """Send a request with the session of a user."""
    client = Client(raise_request_exception=False)
    client.force_login(user)
    given = {"Durable-Tenant": tenant} if tenant else {}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    kind = {} if method == "GET" else {"data": body or {}, "content_type": "application/json"}
    return getattr(client, method.lower())(f"{ROOT}{path}", headers=given, **kind)


def test_a_session_is_refused_unless_the_setting_allows_it(acme: ApiClient, settings: Any) -> None:
    root = User.objects.create_superuser("root")
    assert send(root, "GET", "/tasks").status_code == 200
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "API_SESSIONS": False}
    assert send(root, "GET", "/tasks").status_code == 401


@pytest.mark.parametrize("fields", [{"is_staff": False}, {"is_active": False}])
def test_a_user_who_is_no_active_staff_is_not_accepted(fields: dict[str, bool]) -> None:
    assert send(a_user("view_task", **fields), "GET", "/tasks").status_code == 401


def test_a_write_needs_a_csrf_token(acme: ApiClient) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.create_superuser("root"))
    body, headers = call(), {"Durable-Tenant": "acme"}
    path = f"{ROOT}/tasks"
    refused = client.post(path, body, content_type="application/json", headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (403, "csrf_failed")
    assert refused.headers["Content-Type"] == "application/problem+json"
    assert not Task.objects.exists()
    assert client.get(path, headers=headers).status_code == 200
    token = "a" * 32
    client.cookies["csrftoken"] = token
    headers["X-CSRFToken"] = token
    made = client.post(path, body, content_type="application/json", headers=headers)
    assert made.status_code == 201
    assert Task.objects.get().tenant == acme.tenant


def test_a_superuser_chooses_any_tenant(acme: ApiClient, globex: ApiClient) -> None:
    root = User.objects.create_superuser("root")
    own, other = (many_tasks(1, tenant=one.tenant)[0] for one in (acme, globex))
    default = a_task()
    for tenant, row in (("acme", own), ("globex", other), ("", default)):
        (shown,) = send(root, "GET", "/tasks", tenant=tenant).json()["data"]
        assert shown["task_id"] == str(row.pk)
    assert send(root, "GET", f"/tasks/{own.pk}", tenant="globex").status_code == 404
    assert send(root, "GET", "/tasks", tenant="nobody").status_code == 404
    slugs = [one["slug"] for one in send(root, "GET", "/tenants").json()["data"]]
    assert slugs == ["acme", "default", "globex"]
    assert [one["slug"] for one in acme.get("/tenants").json()["data"]] == ["acme"]


def test_each_action_needs_its_own_permission_and_is_recorded_under_the_user(
    acme: ApiClient,
) -> None:
    task = many_tasks(1, due=60, tenant=acme.tenant)[0]
    path = f"/tasks/{task.pk}/cancel"
    looker = a_user("view_task", "retry_task", "force_complete_task")
    answer = send(looker, "POST", path, tenant="acme")
    assert (answer.status_code, answer.json()["code"]) == (403, "permission_missing")
    assert answer.json()["permissions"] == ["django_durable_tasks.cancel_task"]
    user = a_user("view_task", "cancel_task")
    assert send(user, "POST", path, tenant="acme").json()["status"] == "CANCELLED"
    entry = AuditEntry.objects.get(operation="tasks.cancel")
    assert (entry.source, entry.actor, entry.tenant_id) == (
        "API",
        user.username,
        acme.tenant.pk,
    )


def test_an_action_with_two_operations_needs_the_permission_of_the_chosen_one(
    acme: ApiClient,
) -> None:
    failed = many_tasks(1, "FAILED", tenant=acme.tenant)[0]
    user = a_user("view_task", "retry_task")
    edited: dict[str, Any] = {"target_config": {"args": []}}
    answer = send(user, "POST", f"/tasks/{failed.pk}/replay", edited, tenant="acme")
    assert (answer.status_code, answer.json()["code"]) == (403, "permission_missing")
    assert send(user, "POST", f"/tasks/{failed.pk}/replay", tenant="acme").status_code == 200


def test_arguments_are_masked_without_the_permission_to_read_them(acme: ApiClient) -> None:
    (task,) = many_tasks(1, tenant=acme.tenant)
    Task.objects.unguarded().filter(pk=task.pk).update(kwargs={"password": "hunter2"})
    path = f"/tasks/{task.pk}"
    for names, shown in (((), False), (("view_task_arguments",), True)):
        text = send(a_user("view_task", *names), "GET", path, tenant="acme").content.decode()
        assert ("hunter2" in text) == shown


def test_every_endpoint_needs_a_permission(acme: ApiClient) -> None:
    user, own = a_user(), rows_of(acme)
    for address, method in (*WITH_ID, *WITHOUT_ID):
        answer = send(user, method, filled(address, own), tenant="acme", If_Match="*")
        assert (answer.status_code, answer.json()["code"]) == (403, "permission_missing"), address


def test_every_endpoint_declares_permissions_that_exist() -> None:
    known = {
        f"{label}.{name}".removeprefix("django_durable_tasks.")
        for label, name in Permission.objects.values_list("content_type__app_label", "codename")
    }
    for address, pattern in patterns():
        viewset: Any = pattern.callback.cls  # type: ignore[attr-defined]
        for method in methods(pattern):
            action = pattern.callback.actions[method.lower()]  # type: ignore[attr-defined]
            needs = getattr(viewset, action).endpoint
            models = [model.rpartition(".") for model in needs.reads or viewset.reads]
            names = {f"{label}{dot}view_{name}" for label, dot, name in models}
            assert names, address
            if method != "GET":
                names |= set(viewset.write_permissions(action))
            assert {name.removeprefix("django_durable_tasks.") for name in names} <= known, address


def test_a_limited_user_does_not_find_the_ids_of_another_tenant(
    acme: ApiClient, globex: ApiClient
) -> None:
    user, foreign = a_user("all"), rows_of(globex)
    access.assign_staff(acme.tenant, user.username)
    for address, method in WITH_ID:
        path = filled(address, foreign)
        if method == "DELETE" and path.endswith("/dependencies"):
            path += f"?upstream={foreign['task_id']}"
        for tenant in ("", "globex"):
            answer = send(user, method, path, VALID.get(address, {}), tenant=tenant, If_Match="*")
            assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), address


def test_a_limited_user_sees_the_assigned_tenants_only(acme: ApiClient, globex: ApiClient) -> None:
    user, own, foreign = a_user("all"), rows_of(acme), rows_of(globex)
    access.assign_staff(acme.tenant, user.username)
    ids = [str(one) for one in foreign.values() if len(str(one)) > 30]
    for address in [address for address, method in WITHOUT_ID if method == "GET"]:
        path = filled(address, own)
        answer = send(user, "GET", path)
        if address in SHARED:
            assert (answer.status_code, answer.json()["code"]) == (403, "permission_missing")
            continue
        assert answer.status_code == 200, address
        text = answer.content.decode()
        assert not [one for one in [*ids, "globex"] if one in text], address
        assert send(user, "GET", path, tenant="globex").status_code == 404


def test_a_user_with_several_tenants_names_one(acme: ApiClient, globex: ApiClient) -> None:
    user = a_user("view_task", "view_tenant")
    for client in (acme, globex):
        access.assign_staff(client.tenant, user.username)
    assert send(user, "GET", "/tasks").json()["errors"][0]["header"] == "Durable-Tenant"
    assert send(user, "GET", "/tasks", tenant="globex").status_code == 200
    listed = send(user, "GET", "/tenants", tenant="acme").json()["data"]
    assert [one["slug"] for one in listed] == ["acme", "globex"]
    access.unassign_staff(globex.tenant, user.username)
    assert send(user, "GET", "/tasks", tenant="globex").status_code == 404


def test_only_staff_users_who_are_no_superusers_can_be_limited(acme: ApiClient) -> None:
    User.objects.create_superuser("root")
    User.objects.create_user("customer")
    for name in ("root", "customer", "nobody"):
        with pytest.raises(InvalidOption, match=name):
            access.assign_staff(acme.tenant, name)
    user = a_user()
    assert access.assign_staff(acme.tenant, user.username, by="ann") == 1
    assert access.assign_staff(acme.tenant, user.username) == 0
    entry = AuditEntry.objects.get(operation="tenant.assign_staff")
    assert (entry.actor, entry.after) == ("ann", {"staff": user.username})
    user.username = "renamed"
    user.save()
    assert access.unassign_staff(acme.tenant, "renamed") == 1
    assert access.tenants_of(user) == frozenset()


def test_a_user_without_any_tenant_is_refused_until_the_limit_is_ended(acme: ApiClient) -> None:
    user = a_user("view_task", "view_tenant")
    access.assign_staff(acme.tenant, user.username)
    access.unassign_staff(acme.tenant, user.username)
    for tenant in ("", "acme", "default"):
        for path in ("/tasks", "/tenants"):
            answer = send(user, "GET", path, tenant=tenant)
            assert answer.status_code == 404
            assert answer.json()["detail"] == "No tenant is assigned to this user."
    assert access.unassign_staff(acme.tenant, user.username, all_tenants=True) == 1
    assert send(user, "GET", "/tasks", tenant="acme").status_code == 200
    assert access.unassign_staff(acme.tenant, user.username, all_tenants=True) == 0


def test_an_assignment_after_a_removal_limits_the_user_to_the_new_tenant(
    acme: ApiClient, globex: ApiClient
) -> None:
    user = a_user("view_task")
    access.assign_staff(acme.tenant, user.username)
    access.unassign_staff(acme.tenant, user.username)
    access.assign_staff(globex.tenant, user.username)
    assert access.tenants_of(user) == frozenset({globex.tenant.pk})
    assert tables.unguarded(StaffTenant).count() == 1


def test_a_deleted_tenant_leaves_its_users_limited() -> None:
    user, tenant = a_user("view_task"), a_tenant("initech")
    access.assign_staff(tenant, user.username)
    AuditEntry.objects.all().unguarded().filter(tenant=tenant).delete()
    tenant.delete()
    assert access.tenants_of(user) == frozenset()


def test_the_command_lists_the_users_who_see_all_tenants_with_the_reason(acme: ApiClient) -> None:
    limited, free, chief = (a_user("view_task") for _number in range(3))
    access.assign_staff(acme.tenant, limited.username)
    access.assign_staff(acme.tenant, chief.username)
    type(chief).objects.filter(pk=chief.pk).update(is_superuser=True)
    boss, gone, customer = (a_user("view_task") for _number in range(3))
    type(boss).objects.filter(pk=boss.pk).update(is_superuser=True)
    type(gone).objects.filter(pk=gone.pk).update(is_active=False)
    type(customer).objects.filter(pk=customer.pk).update(is_staff=False)
    found = [
        (one["user"], one["reason"]) for one in json_of("staff", "list") if one["tenant"] == "(all)"
    ]
    assert found == sorted(
        [
            (free.username, "was never limited to tenants"),
            (boss.username, "superuser"),
            (chief.username, "superuser, assignments have no effect"),
        ]
    )
    for name, _reason in found:
        assert access.tenants_of(type(free).objects.get(username=name)) is None


def test_the_command_lists_limited_users_without_a_tenant_and_ends_a_limit(
    acme: ApiClient, globex: ApiClient
) -> None:
    user = a_user("view_task")
    for client in (acme, globex):
        access.assign_staff(client.tenant, user.username)
    access.unassign_staff(globex.tenant, user.username)
    assert [one["tenant"] for one in json_of("staff", "list")] == ["acme"]
    access.unassign_staff(acme.tenant, user.username)
    assert [one["tenant"] for one in json_of("staff", "list")] == ["(none)"]
    given = ("--tenant", "acme", "--username", user.username, "--all-tenants")
    assert "sees all tenants" in durable("staff", "unassign", *given).err
    assert access.tenants_of(user) is None
