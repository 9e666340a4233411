"""The tasks of this package that only the engine creates are not offered where a person chooses one."""

from __future__ import annotations

from django_durable_tasks import registry
from django_durable_tasks.admin.recurring_tasks import task_names


def test_the_form_of_a_schedule_offers_no_internal_tasks() -> None:
    offered = task_names(None)
    ours = {name for name in offered if name.startswith("django_durable_tasks.")}
    assert ours == {"django_durable_tasks.http_callback", "django_durable_tasks.queue_message"}
    assert set(offered) - ours
    assert {name for name in registry.names() if registry.is_internal(name)}
