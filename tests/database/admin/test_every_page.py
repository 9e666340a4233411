"""Every registered page for a superuser, for a user with the permission to view it, and for one
without it. ``test_staff_tenants`` has those for a user who is limited to tenants.
"""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_durable_tasks.admin.readonly import DurableModelAdmin
from django_durable_tasks.models import TaskDependency
from django_durable_tasks.workflows import operations
from tests.database.admin.full_tenant import MODEL_ADMINS, pages_of
from tests.database.admin.site import list_of, page_of
from tests.factories import a_task

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("open_notifications")]
EDITABLE = {"tenant", "limit", "notificationsetting"}
"""The models that Django's own form adds or changes; others are changed by operations."""
ADDED = {"tenant", "limit", "notificationsetting", "apikey", "recurringtask", "calendar"}
ADDED_BY_FORMS = {*ADDED, "taskdependency"}
each_page = pytest.mark.parametrize(
    "model_admin", MODEL_ADMINS, ids=lambda one: one.opts.model_name
)


@pytest.fixture
def row(model_admin: DurableModelAdmin, full_rows: dict[str, Any]) -> Any:
    """Return the row of this page."""
    return full_rows[str(model_admin.opts.model_name)]


def _address(model_admin: DurableModelAdmin, page: str, *key: Any) -> str:
    label = f"{model_admin.opts.app_label}_{model_admin.opts.model_name}"
    return reverse(f"admin:{label}_{page}", args=key)


def _user(*permissions: str) -> Client:
    user, client = User.objects.create_user("reader", is_staff=True), Client()
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client.force_login(user)
    return client


@each_page
def test_a_superuser_opens_the_list_and_each_page(
    ann: Client, model_admin: DurableModelAdmin, row: Any
) -> None:
    address = list_of(str(model_admin.opts.model_name))
    assert ann.get(address).status_code == 200
    for page in (page_of(row), _address(model_admin, "history", row.pk)):
        assert ann.get(page).status_code == 200, page
    can_add = model_admin.opts.model_name in ADDED_BY_FORMS
    assert ann.get(_address(model_admin, "add")).status_code == (200 if can_add else 403)


@each_page
def test_a_user_without_permission_sees_neither_list_nor_page(
    model_admin: DurableModelAdmin, row: Any
) -> None:
    nobody = _user()
    address = list_of(str(model_admin.opts.model_name))
    for page in (address, f"{address}add/", *pages_of(model_admin, row)):
        for method in (nobody.get, nobody.post):
            answer = method(page)
            # Django redirects the address of a row without a page to the page.
            assert answer.status_code == 403 or str(answer.headers["Location"]).endswith(
                "/change/"
            ), page


@each_page
def test_a_user_who_may_view_rows_can_change_nothing(
    model_admin: DurableModelAdmin, row: Any
) -> None:
    viewer = _user(*(f"view_{one.opts.model_name}" for one in MODEL_ADMINS))
    listed = viewer.get(list_of(str(model_admin.opts.model_name)))
    assert 'name="action"' not in listed.content.decode()
    assert "/add/" not in listed.content.decode()
    for page in ("add", "delete"):
        key = () if page == "add" else (row.pk,)
        assert viewer.post(_address(model_admin, page, *key), {"post": "yes"}).status_code == 403
    for word in ("Pause…", "Resume</button>"):
        assert word not in listed.content.decode()
    for page in pages_of(model_admin, row):
        if not page.endswith("/change/"):
            read_only = page.endswith(("/history/", ".svg"))
            assert (viewer.get(page).status_code == 200) == read_only, page
    opened = viewer.get(page_of(row))
    assert opened.status_code == 200
    assert not opened.context["has_change_permission"]
    # A link to other rows is no operation.
    buttons = [str(button["title"]) for button in opened.context.get("buttons") or ()]
    assert set(buttons) <= {"Its dead letters"}
    for word in ("durable-chosen", "Remove…", "Skip…"):
        assert word not in opened.content.decode()
    assert viewer.post(page_of(row), {"name": "other", "_save": "1"}).status_code == 403


@each_page
def test_a_superuser_changes_and_deletes_only_what_has_a_form(
    ann: Client, model_admin: DurableModelAdmin, row: Any
) -> None:
    model = model_admin.opts.model_name
    can_delete = model == "limit"
    assert ann.get(_address(model_admin, "delete", row.pk)).status_code == (
        200 if can_delete else 403
    )
    if model not in EDITABLE:
        assert ann.post(page_of(row), {"name": "other"}).status_code == 403
    listed = ann.get(list_of(str(model))).content.decode()
    # Tenants keep Django's action, which their permission refuses for each of them.
    assert ("delete_selected" in listed) == can_delete


@each_page
def test_a_get_request_writes_and_locks_nothing(
    ann: Client, model_admin: DurableModelAdmin, row: Any
) -> None:
    ann.get(page_of(row))  # the session is read once
    for page in (list_of(str(model_admin.opts.model_name)), *pages_of(model_admin, row)):
        with CaptureQueriesContext(connection) as captured:
            ann.get(page, {"_do": "1", "reason": "x", "post": "yes"})
        for query in captured:
            statement = query["sql"].upper()
            assert not statement.startswith(("INSERT", "UPDATE", "DELETE", "LOCK")), page
            assert "FOR UPDATE" not in statement, page
            assert "FOR NO KEY" not in statement, page


@each_page
@pytest.mark.parametrize(("permission", "page"), [("add", "add"), ("change", "edit")])
def test_adding_and_editing_need_their_own_permissions(
    model_admin: DurableModelAdmin, row: Any, permission: str, page: str
) -> None:
    model = model_admin.opts.model_name
    pages = [one for one in pages_of(model_admin, row) if one.endswith("/edit/")]
    pages = pages if page == "edit" else [_address(model_admin, "add")]
    wanted = f"{permission}_{model}"
    offered = 200 if page == "edit" or model in ADDED_BY_FORMS else 403
    permitted = _user(f"view_{model}", wanted)
    for address in pages:
        assert permitted.get(address).status_code == offered, address
    permitted.logout()
    User.objects.all().delete()
    everything = Permission.objects.exclude(codename=wanted).values_list("codename", flat=True)
    other = _user(*everything)
    for address in pages:
        assert other.get(address).status_code == 403, address


def test_a_gate_is_opened_by_its_buttons_and_not_for_a_user_who_may_only_view_it() -> None:
    operations.hold(a_task())
    edge = TaskDependency.objects.get(gate="HOLD")
    viewer = _user("view_taskdependency", "view_task")
    assert viewer.get(page_of(edge)).context["buttons"] == []
