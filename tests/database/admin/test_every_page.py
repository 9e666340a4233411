"""Every registered page for a superuser, for a user with the permission to view it, and for one
without it. ``test_staff_tenants`` has those for a user who is limited to tenants.
"""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

from django_durable_tasks.admin.readonly import ScreenAdmin
from django_durable_tasks.models import TaskDependency
from django_durable_tasks.workflows import operations
from tests.database.admin.full_tenant import SCREENS, a_full_tenant, shared_rows
from tests.database.admin.site import list_of, page_of

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("open_notifications")]
EDITABLE = {"tenant", "limit", "notificationsetting"}
"""The models that Django's own form adds or changes; others are changed by operations."""
ADDED = {"tenant", "limit", "notificationsetting", "apikey", "recurringtask", "calendar"}
ADDED_BY_FORMS = {*ADDED, "taskdependency"}
each_page = pytest.mark.parametrize("screen", SCREENS, ids=lambda one: one.opts.model_name)


def _row(screen: ScreenAdmin) -> Any:
    """Create a row of each kind, and return the one of this page."""
    rows = {**a_full_tenant("acme"), **shared_rows()}
    return rows[str(screen.opts.model_name)]


def _address(screen: ScreenAdmin, page: str, *key: Any) -> str:
    label = f"{screen.opts.app_label}_{screen.opts.model_name}"
    return reverse(f"admin:{label}_{page}", args=key)


def _user(*permissions: str) -> Client:
    user, client = User.objects.create_user("reader", is_staff=True), Client()
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client.force_login(user)
    return client


@each_page
def test_a_superuser_opens_the_list_without_and_with_rows_and_each_page(
    ann: Client, screen: ScreenAdmin
) -> None:
    address = list_of(str(screen.opts.model_name))
    assert ann.get(address).status_code == 200
    row = _row(screen)
    assert ann.get(address).status_code == 200
    for page in (page_of(row), _address(screen, "history", row.pk)):
        assert ann.get(page).status_code == 200, page
    can_add = screen.opts.model_name in ADDED_BY_FORMS
    assert ann.get(_address(screen, "add")).status_code == (200 if can_add else 403)


@each_page
def test_a_user_without_permission_sees_neither_list_nor_page(screen: ScreenAdmin) -> None:
    row, nobody = _row(screen), _user()
    for page in (list_of(str(screen.opts.model_name)), page_of(row)):
        assert nobody.get(page).status_code == 403, page


@each_page
def test_a_user_who_may_view_rows_can_change_nothing(screen: ScreenAdmin) -> None:
    row = _row(screen)
    viewer = _user(*(f"view_{one.opts.model_name}" for one in SCREENS))
    listed = viewer.get(list_of(str(screen.opts.model_name)))
    assert 'name="action"' not in listed.content.decode()
    assert "/add/" not in listed.content.decode()
    for page in ("add", "delete"):
        key = () if page == "add" else (row.pk,)
        assert viewer.post(_address(screen, page, *key), {"post": "yes"}).status_code == 403
    for word in ("Pause…", "Resume</button>"):
        assert word not in listed.content.decode()
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
    ann: Client, screen: ScreenAdmin
) -> None:
    row, model = _row(screen), screen.opts.model_name
    can_delete = model == "limit"
    assert ann.get(_address(screen, "delete", row.pk)).status_code == (200 if can_delete else 403)
    if model not in EDITABLE:
        assert ann.post(page_of(row), {"name": "other"}).status_code == 403
    listed = ann.get(list_of(str(model))).content.decode()
    # Tenants keep Django's action, which their permission refuses for each of them.
    assert ("delete_selected" in listed) == can_delete


def test_a_gate_is_opened_by_its_buttons_and_not_for_a_user_who_may_only_view_it() -> None:
    row = a_full_tenant("acme")["waiting"]
    operations.hold(row)
    edge = TaskDependency.objects.get(gate="HOLD")
    viewer = _user("view_taskdependency", "view_task")
    assert viewer.get(page_of(edge)).context["buttons"] == []
