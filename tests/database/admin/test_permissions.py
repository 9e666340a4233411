"""Each verb has a permission of its own: with it and no other it works, without it nothing is
offered or done.
"""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from django_durable_tasks.models import DeadLetter, QueueControl, Task
from django_durable_tasks.rules.states import Status
from tests.database.admin.site import act, list_of, page_of, staff
from tests.factories import a_paused_queue, a_task

pytestmark = pytest.mark.django_db

VIEWS = ("view_task", "view_deadletter", "view_queuecontrol", "view_taskexecutionlog")
ALL = (
    "cancel_task",
    "retry_task",
    "force_complete_task",
    "replay_deadletter",
    "discard_deadletter",
    "pause_queuecontrol",
    "view_task_arguments",
)


def _post(name: str, **data: str) -> Callable[[Client], Any]:
    def post(client: Client) -> Any:
        return client.post(reverse(f"admin:django_durable_tasks_{name}"), data)

    return post


def _on(action: str, model: Any) -> Callable[[Client], Any]:
    def run(client: Client) -> Any:
        return act(client, action, model.objects.filter(**_FAILED[model]).get(), reason="because")

    return run


_FAILED: dict[Any, dict[str, Any]] = {Task: {"status": Status.FAILED}, DeadLetter: {}}


def _cancel(client: Client) -> Any:
    return act(client, "cancel", Task.objects.get(status=Status.PENDING))


def _edit(client: Client) -> Any:
    task = Task.objects.get(status=Status.FAILED)
    address = reverse("admin:django_durable_tasks_task_replay", args=[task.pk])
    page = client.get(address)
    carried = {"opened": page.context["form"]["opened"].value()} if page.status_code == 200 else {}
    return client.post(address, {"args": "[]", "kwargs": "{}", "reason": "", **carried})


VERBS: list[tuple[str, tuple[str, ...], Callable[[Client], Any]]] = [
    ("cancel", ("cancel_task",), _cancel),
    ("replay task", ("retry_task",), _on("replay", Task)),
    ("force_complete", ("force_complete_task",), _on("force_complete", Task)),
    ("replay", ("replay_deadletter",), _on("replay", DeadLetter)),
    ("replay edited", ("replay_deadletter", "view_task_arguments"), _edit),
    ("discard", ("discard_deadletter",), _on("discard", DeadLetter)),
    ("pause", ("pause_queuecontrol",), _post("queuecontrol_pause", queue="test", reason="because")),
    ("resume", ("pause_queuecontrol",), _post("queuecontrol_resume", queue="held")),
]
IDS = [name for name, *_ in VERBS]


def _house() -> None:
    a_task()
    a_task(Status.FAILED)
    a_paused_queue("held")


def _picture() -> list[Any]:
    """Return everything that a verb of an operator may change."""
    return [
        sorted(Task.objects.values_list("pk", "status", "epoch", "cancel_requested_at")),
        sorted(DeadLetter.objects.values_list("pk", "resolution")),
        sorted(QueueControl.objects.filter(paused_at__isnull=False).values_list("name", flat=True)),
    ]


@pytest.mark.parametrize(("name", "permissions", "verb"), VERBS, ids=IDS)
def test_a_verb_works_with_its_own_permission_alone(
    name: str, permissions: tuple[str, ...], verb: Callable[[Client], Any]
) -> None:
    _house()
    before = _picture()
    verb(staff(*VIEWS, *permissions))
    assert _picture() != before


@pytest.mark.parametrize(("name", "permissions", "verb"), VERBS, ids=IDS)
def test_a_verb_does_nothing_without_its_permission_whatever_else_one_may(
    name: str, permissions: tuple[str, ...], verb: Callable[[Client], Any]
) -> None:
    _house()
    before = _picture()
    for missing in permissions:
        verb(staff(*VIEWS, *(other for other in ALL if other != missing)))
        assert _picture() == before


@pytest.mark.parametrize(("name", "permissions", "verb"), VERBS, ids=IDS)
def test_a_verb_does_nothing_for_somebody_who_may_not_even_look(
    name: str, permissions: tuple[str, ...], verb: Callable[[Client], Any]
) -> None:
    _house()
    before = _picture()
    answer = verb(staff())
    assert answer.status_code in (403, 302)
    assert _picture() == before


def test_somebody_who_may_only_look_is_offered_no_verb() -> None:
    _house()
    looker = staff(*VIEWS)
    for model in ("task", "deadletter"):
        assert 'name="action"' not in looker.get(list_of(model)).content.decode()
    for row in (*Task.objects.all(), *DeadLetter.objects.all()):
        assert not [
            button for button in looker.get(page_of(row)).context["buttons"] if "action" in button
        ]
    queues = looker.get(list_of("queuecontrol")).content.decode()
    assert "Pause…" not in queues
    assert "Resume" not in queues


def test_every_form_is_refused_without_its_csrf_token() -> None:
    _house()
    client = staff(*VIEWS, *ALL)
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = client.cookies
    before = _picture()
    for _name, _permissions, verb in VERBS:
        assert verb(strict).status_code == 403
    assert _picture() == before
