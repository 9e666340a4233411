"""Each operation has its own permission, which is necessary and sufficient."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from django_durable_tasks.choices import Status
from django_durable_tasks.models import DeadLetter, QueueControl, Task
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


OPERATIONS: list[tuple[str, tuple[str, ...], Callable[[Client], Any]]] = [
    ("cancel", ("cancel_task",), _cancel),
    ("replay task", ("retry_task",), _on("replay", Task)),
    ("force_complete", ("force_complete_task",), _on("force_complete", Task)),
    ("replay", ("replay_deadletter",), _on("replay", DeadLetter)),
    ("replay edited", ("replay_deadletter", "view_task_arguments"), _edit),
    ("discard", ("discard_deadletter",), _on("discard", DeadLetter)),
    ("pause", ("pause_queuecontrol",), _post("queuecontrol_pause", queue="test", reason="because")),
    ("resume", ("pause_queuecontrol",), _post("queuecontrol_resume", queue="held")),
]
IDS = [name for name, *_ in OPERATIONS]


def _write_tasks() -> None:
    a_task()
    a_task(Status.FAILED)
    a_paused_queue("held")


def _state() -> list[Any]:
    """Return every value that an operation may change."""
    return [
        sorted(Task.objects.values_list("pk", "status", "epoch", "cancel_requested_at")),
        sorted(DeadLetter.objects.values_list("pk", "resolution")),
        sorted(QueueControl.objects.filter(paused_at__isnull=False).values_list("name", flat=True)),
    ]


@pytest.mark.parametrize(("name", "permissions", "operation"), OPERATIONS, ids=IDS)
def test_an_operation_works_with_its_own_permission_alone(
    name: str, permissions: tuple[str, ...], operation: Callable[[Client], Any]
) -> None:
    _write_tasks()
    before = _state()
    operation(staff(*VIEWS, *permissions))
    assert _state() != before


@pytest.mark.parametrize(("name", "permissions", "operation"), OPERATIONS, ids=IDS)
def test_an_operation_does_nothing_without_its_permission(
    name: str, permissions: tuple[str, ...], operation: Callable[[Client], Any]
) -> None:
    _write_tasks()
    before = _state()
    for missing in permissions:
        operation(staff(*VIEWS, *(other for other in ALL if other != missing)))
        assert _state() == before


@pytest.mark.parametrize(("name", "permissions", "operation"), OPERATIONS, ids=IDS)
def test_an_operation_does_nothing_for_a_user_without_view_permission(
    name: str, permissions: tuple[str, ...], operation: Callable[[Client], Any]
) -> None:
    _write_tasks()
    before = _state()
    answer = operation(staff())
    assert answer.status_code in (403, 302)
    assert _state() == before


def test_a_user_with_view_permission_only_is_offered_no_action() -> None:
    _write_tasks()
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
    _write_tasks()
    client = staff(*VIEWS, *ALL)
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = client.cookies
    before = _state()
    for _name, _permissions, operation in OPERATIONS:
        assert operation(strict).status_code == 403
    assert _state() == before
