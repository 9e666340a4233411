"""The admin offers only what the permissions of a user allow."""

import pytest

from django_durable_tasks.choices import Status
from django_durable_tasks.models import DeadLetter, Task
from tests.database.admin.site import list_of, page_of, staff
from tests.factories import a_paused_queue, a_task

pytestmark = pytest.mark.django_db

VIEWS = ("view_task", "view_deadletter", "view_queuecontrol", "view_taskexecutionlog")


def _write_tasks() -> None:
    a_task()
    a_task(Status.FAILED)
    a_paused_queue("held")


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
