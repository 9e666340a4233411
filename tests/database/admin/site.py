"""Log in to the admin, open its pages and run its actions."""

from __future__ import annotations

import html
import itertools
import re
from typing import Any

from django.apps import apps
from django.contrib.auth.models import Permission, User
from django.contrib.messages import get_messages
from django.test import Client
from django.urls import reverse

from django_durable_tasks.contrib.api import access
from django_durable_tasks.models import Tenant

APP = "django_durable_tasks"
_number = itertools.count(1)


def _labels() -> list[str]:
    """Return the labels of the package and of its optional apps."""
    return [app.label for app in apps.get_app_configs() if "durable_tasks" in app.label]


def staff(*permissions: str) -> Client:
    """Return a client logged in as a staff user with exactly these permissions."""
    user = User.objects.create_user(f"somebody{next(_number)}", is_staff=True)
    wanted = Permission.objects.filter(
        content_type__app_label__in=_labels(), codename__in=permissions
    )
    assert wanted.count() == len(permissions), "no such permission"
    user.user_permissions.set(wanted)
    return _browser(user)


def operator(name: str = "ann") -> Client:
    """Return a client logged in as a superuser."""
    return _browser(User.objects.create_superuser(name))


def limited_staff(tenant: Tenant, name: str = "bob") -> Client:
    """Return a client of a staff user with all permissions who is limited to one tenant."""
    user = User.objects.create_user(name, is_staff=True)
    user.user_permissions.set(Permission.objects.all())
    access.assign_staff(tenant, name)
    return _browser(user)


def _browser(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def _label(model: str) -> str:
    return next(label for label in _labels() if model in apps.all_models[label])


def list_of(model: str) -> str:
    """Return the address of a list."""
    return reverse(f"admin:{_label(model)}_{model}_changelist")


def page_of(row: Any) -> str:
    """Return the address of the page of an object."""
    return reverse(f"admin:{row._meta.label_lower.replace('.', '_')}_change", args=[row.pk])


def act(client: Client, action: str, *rows: Any, confirm: bool = True, **fields: str) -> Any:
    """Run an action on the chosen objects of a list, and confirm it if it asks for confirmation."""
    address = list_of(rows[0]._meta.model_name)
    asked = client.post(
        address, {"action": action, "_selected_action": [str(row.pk) for row in rows], **fields}
    )
    return confirmed(client, address, asked, **fields) if confirm else asked


def confirmed(client: Client, address: str, asked: Any, **fields: str) -> Any:
    """Send the confirmation form. An answer without such a form is returned unchanged."""
    found = re.findall(
        r'<input type="hidden" name="([^"]+)" value="([^"]*)"', asked.content.decode()
    )
    carried = {name: html.unescape(value) for name, value in found if name != "csrfmiddlewaretoken"}
    return client.post(address, {**carried, **fields}) if "durable_confirmed" in carried else asked


def opened(client: Client, address: str) -> str:
    """Return the field of an edit form that identifies the version of the object it shows."""
    value: str = client.get(address).context["form"]["opened"].value()
    return value


def messages_of(answer: Any) -> list[str]:
    """Return the messages that the next page shows."""
    return [str(message) for message in get_messages(answer.wsgi_request)]


def text(answer: Any) -> str:
    """Return the visible text of a page."""
    body = re.sub(r"<[^>]+>", " ", answer.content.decode())
    return re.sub(r"\s+", " ", html.unescape(body))
