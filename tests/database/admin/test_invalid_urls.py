"""An invalid URL or choice is answered without a database error."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin.utils import quote
from django.test import Client
from django.urls import reverse

from django_durable_tasks.choices import Status
from django_durable_tasks.models import DeadLetter, Limit, Task
from tests.database.admin.site import APP, list_of, messages_of, operator
from tests.factories import a_task
from tests.repetitions import repetitions

pytestmark = pytest.mark.django_db

SCREENS = {
    model._meta.model_name: screen
    for model, screen in admin.site._registry.items()
    if model._meta.app_label == APP
}
ODD = ("\x00", "é" * 300, "9" * 30)[: repetitions(3, least=1)]


@pytest.fixture
def ann() -> Client:
    """Return a client logged in as a superuser, and create some objects."""
    a_task(Status.FAILED)
    a_task()
    return operator("ann")


def _parameters(screen: Any) -> set[str]:
    filters = {
        getattr(one, "parameter_name", None) or f"{one}__exact" for one in screen.list_filter
    }
    return filters | set(screen.lookups_allowed) | {"q", "o", "p", "all", "nothing", "_facets"}


@pytest.mark.parametrize("name", SCREENS)
@pytest.mark.parametrize("value", ODD, ids=range(len(ODD)))
def test_a_list_answers_any_parameters(ann: Client, name: str, value: str) -> None:
    for parameter in _parameters(SCREENS[name]):
        answer = ann.get(list_of(name), {parameter: value}, follow=True)
        assert answer.status_code in (200, 400), parameter


@pytest.mark.parametrize("name", SCREENS)
def test_a_page_of_an_impossible_id_is_answered(ann: Client, name: str) -> None:
    for page in ("change", "history", "delete"):
        for key in ODD:
            address = reverse(f"admin:{APP}_{name}_{page}", args=[quote(key)])
            assert ann.get(address, follow=True).status_code in (200, 403, 404), address


@pytest.mark.parametrize(
    "name", [name for name, screen in SCREENS.items() if screen.actions is not None]
)
@pytest.mark.parametrize("key", ["zz", "\x00", "9" * 30])
def test_an_action_on_an_impossible_id_changes_nothing(ann: Client, name: str, key: str) -> None:
    Limit.objects.create(scope="queue:mail", max_concurrency=1)
    request = ann.get(list_of(name)).wsgi_request
    for action in SCREENS[name].get_actions(request):
        for chosen in ([key], [key, str(Task.objects.all()[0].pk)]):
            answer = ann.post(list_of(name), {"action": action, "_selected_action": chosen})
            assert answer.status_code in (200, 302), action
            refused = messages_of(answer)[-1:] == [
                "Nothing was changed: the selection contains an invalid id."
            ]
            assert refused or (name == "limit" and "\x00" not in key), action
    assert (Task.objects.count(), DeadLetter.objects.open().count(), Limit.objects.count()) == (
        2,
        1,
        1,
    )
