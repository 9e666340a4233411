"""A staff user who is limited to tenants sees and changes only their rows, on every page.

The tests read the URL patterns of the admin, so that a new page is tried too.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from django_durable_tasks.contrib.api import access
from django_durable_tasks.contrib.api.models import ApiKey
from django_durable_tasks.contrib.notifications.models import NotificationSetting
from django_durable_tasks.models import (
    AuditEntry,
    Calendar,
    DeadLetter,
    RecurringTask,
    Task,
    TaskDependency,
    Tenant,
    WorkflowRun,
)
from tests.database.admin.full_tenant import (
    MODEL_ADMINS,
    MODELS,
    SHARED,
    a_full_tenant,
    pages_of,
    shared_rows,
)
from tests.database.admin.site import act, limited_staff, list_of, page_of
from tests.factories import a_paused_queue

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("open_notifications")]


@pytest.fixture
def acme() -> dict[str, Any]:
    """Return the rows of the tenant to which the user is limited."""
    return a_full_tenant("acme")


@pytest.fixture
def globex() -> dict[str, Any]:
    """Return the rows of another tenant."""
    return a_full_tenant("globex")


@pytest.fixture
def limited(acme: dict[str, Any]) -> Client:
    """Return a client of a user with all permissions who is limited to one tenant."""
    return limited_staff(acme["tenant"], "ann")


def _state() -> list[Any]:
    return [
        sorted(Task.objects.values_list("pk", "status", "epoch")),
        sorted(DeadLetter.objects.values_list("pk", "resolution")),
        sorted(RecurringTask.objects.values_list("pk", "status", "revision")),
        sorted(WorkflowRun.objects.values_list("pk", "status", "cancel_requested_at")),
        sorted(Calendar.objects.values_list("pk", "revision")),
        sorted(NotificationSetting.objects.values_list("pk", "revision")),
        sorted(TaskDependency.objects.values_list("pk", flat=True)),
        sorted(ApiKey.objects.values_list("pk", "revoked_at"), key=str),
        sorted(Tenant.objects.values_list("pk", "name")),
    ]


def test_every_model_admin_names_its_tenant_or_is_refused(limited: Client) -> None:
    shared_rows()
    for model_admin in MODEL_ADMINS:
        model = str(model_admin.opts.model_name)
        assert (model_admin.tenant_path is None) == (model in SHARED), model
        answer = limited.get(list_of(model))
        assert answer.status_code == (403 if model in SHARED else 200), model
    index = limited.get(reverse("admin:app_list", args=["django_durable_tasks"]))
    shown = {one["object_name"].lower() for one in index.context["app_list"][0]["models"]}
    assert not shown & SHARED


def test_a_page_of_another_tenant_does_not_exist(limited: Client, globex: dict[str, Any]) -> None:
    before, tried = _state(), 0
    tenants = [
        model_admin for model_admin in MODEL_ADMINS if model_admin.opts.model_name not in SHARED
    ]
    pages = [
        pages_of(model_admin, globex[str(model_admin.opts.model_name)]) for model_admin in tenants
    ]
    for address in itertools.chain(*pages):
        for method in (limited.get, limited.post):
            answer = method(address, {"reason": "because"} if method == limited.post else {})
            missing = answer.status_code in (403, 404, 405) or (
                answer.status_code == 302 and answer.headers["Location"] == reverse("admin:index")
            )
            redirected = answer.status_code == 302 and answer.headers["Location"] == "../change/"
            forward = answer.status_code == 302 and answer.headers["Location"].endswith("/change/")
            assert missing or redirected or forward, (address, answer.status_code)
            assert "globex" not in answer.content.decode(), address
            tried += 1
    assert tried > 80
    assert _state() == before


def test_no_list_and_no_page_shows_a_name_of_another_tenant(
    limited: Client, acme: dict[str, Any], globex: dict[str, Any]
) -> None:
    lists = [list_of(name) for name in MODELS if name not in SHARED]
    foreign = globex["tenant"].pk
    questions = [
        "",
        "?q=globex",
        f"?tenant={foreign}",
        "?e=1",
        "?name=globex.task",
        "?queue=globex-queue",
        f"?schedule={globex['recurringtask'].pk}",
        f"?q={globex['task'].pk}",
    ]
    pages = [f"{address}{question}" for address in lists for question in questions]
    pages += [page_of(row) for name, row in acme.items() if name != "waiting"]
    forms = ("apikey", "notificationsetting", "recurringtask", "calendar", "taskdependency")
    pages += [f"{list_of(name)}add/" for name in forms]
    asked = {"globex", "globex.task", "globex-queue"}
    for address in pages:
        answer = limited.get(address, follow=True)
        if answer.status_code == 400 and "=" in address:
            continue  # not a filter of this list
        assert answer.status_code == 200, address
        text = answer.content.decode()
        for word in asked:  # the search and the chosen filter repeat what was asked
            if word in address:
                break
        else:
            assert "globex" not in text, address
        key = str(globex["task"].pk)
        assert key in address or key not in text, address
    own = limited.get(list_of("task")).content.decode()
    assert "acme.task" in own


def test_no_action_changes_a_row_of_another_tenant(limited: Client, globex: dict[str, Any]) -> None:
    before = _state()
    for model_admin in MODEL_ADMINS:
        model = str(model_admin.opts.model_name)
        if model in SHARED:
            continue
        names = [one.__name__ for one in model_admin.actions or () if callable(one)]
        for name in [*names, "delete_selected"]:
            act(limited, name, globex[model], reason="because")
    act(limited, "cancel", globex["waiting"])
    assert _state() == before


def test_an_action_changes_the_rows_of_the_assigned_tenant(
    limited: Client, acme: dict[str, Any]
) -> None:
    act(limited, "cancel", acme["waiting"])
    assert Task.objects.get(pk=acme["waiting"].pk).status == "CANCELLED"


def test_a_dependency_on_a_task_of_another_tenant_is_refused(
    limited: Client, acme: dict[str, Any], globex: dict[str, Any]
) -> None:
    address = reverse("admin:django_durable_tasks_taskdependency_add")
    for task, upstream in ((acme, globex), (globex, globex), (globex, acme)):
        form = {
            "task": str(task["waiting"].pk),
            "upstream": str(upstream["task"].pk),
            "type": "MUST_SUCCEED",
        }
        answer = limited.post(address, form)
        assert "There is no task" in answer.content.decode()
        assert "globex" not in answer.content.decode()


def test_what_all_tenants_share_cannot_be_changed(limited: Client) -> None:
    a_paused_queue("held")
    for name, data in (("pause", {"queue": "test"}), ("resume", {"queue": "held"})):
        address = reverse(f"admin:django_durable_tasks_queuecontrol_{name}")
        assert limited.post(address, data).status_code == 403
    overview = limited.get(reverse("admin:django_durable_tasks_overview"))
    assert overview.headers["Location"] == list_of("task")


def test_the_page_of_a_tenant_limits_users(ann: Client, acme: dict[str, Any]) -> None:
    user = User.objects.create_user("bob", is_staff=True)
    address, tenant = page_of(acme["tenant"]), acme["tenant"]

    def save(names: str) -> Any:
        opened = ann.get(address).context["adminform"].form["opened"].value()
        form = {"slug": "acme", "name": "acme", "staff": names, "opened": opened, "reason": "new"}
        return ann.post(address, form, follow=True)

    save("bob")
    assert access.tenants_of(user) == frozenset({tenant.pk})
    assert "bob" in ann.get(address).content.decode()
    assert "there is no staff user" in save("bob\nnobody").content.decode()
    save("")
    assert access.tenants_of(user) == frozenset()
    assert AuditEntry.objects.filter(operation="tenant.unassign_staff").exists()


def test_the_page_of_a_tenant_names_the_users_who_see_all_tenants(
    ann: Client, acme: dict[str, Any]
) -> None:
    for name in ("bob", "<cleo>"):
        User.objects.create_user(name, is_staff=True)
    access.assign_staff(acme["tenant"], "bob")
    page = ann.get(page_of(acme["tenant"])).content.decode()
    assert "&lt;cleo&gt; (was never limited to tenants)" in page
    assert "<cleo>" not in page
    assert "bob (" not in page


def test_the_page_of_a_tenant_ends_a_limit_only_on_request(
    ann: Client, acme: dict[str, Any]
) -> None:
    user = User.objects.create_user("bob", is_staff=True)
    access.assign_staff(acme["tenant"], "bob")
    address = page_of(acme["tenant"])
    opened = ann.get(address).context["adminform"].form["opened"].value()
    form = {"slug": "acme", "name": "acme", "staff": "", "all_tenants": "on", "opened": opened}
    ann.post(address, form)
    assert access.tenants_of(user) is None
    entry = AuditEntry.objects.get(operation="tenant.unassign_staff")
    assert (entry.before["tenants"], entry.after["tenants"]) == (["acme"], "all")


def test_a_user_whose_last_tenant_was_removed_sees_no_row(
    limited: Client, acme: dict[str, Any], globex: dict[str, Any]
) -> None:
    access.unassign_staff(acme["tenant"], "ann")
    for name in MODELS:
        answer = limited.get(list_of(name))
        assert answer.status_code == (403 if name in SHARED else 200), name
        text = answer.content.decode()
        assert "acme" not in text, name
        assert "globex" not in text, name
    for rows in (acme, globex):
        assert limited.get(page_of(rows["task"])).status_code == 302


def test_a_limited_user_cannot_limit_users_or_add_tenants(
    limited: Client, acme: dict[str, Any]
) -> None:
    address = page_of(acme["tenant"])
    page = limited.get(address)
    assert 'name="staff"' not in page.content.decode()
    opened = page.context["adminform"].form["opened"].value()
    form = {"slug": "acme", "name": "acme", "staff": "", "opened": opened}
    assert limited.post(address, form).status_code == 302
    assert access.tenants_of(User.objects.get(username="ann")) == frozenset({acme["tenant"].pk})
    assert limited.get(f"{list_of('tenant')}add/").status_code == 403
