"""``batch``: which options it can be combined with, for a task, for the project and for a call."""

from __future__ import annotations

from typing import Any

import pytest

from django_durable_tasks.choices import OnOrphan
from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.registry import HTTP_CALLBACK_TASK, QUEUE_MESSAGE_TASK
from django_durable_tasks.tasks.options import CallOptions, call_options, task_options
from django_durable_tasks.workflows.builder import END

REFUSED: dict[str, Any] = {
    "timeout": 5,
    "soft_timeout": 5,
    "unique_for": 60,
    "on_orphan": "DEAD_LETTER",
}


@pytest.mark.parametrize("option", REFUSED)
def test_an_option_that_needs_a_message_of_its_own_is_refused_with_the_reason(option: str) -> None:
    given = {"batch": 100, "unique": "{task}", option: REFUSED[option]}
    with pytest.raises(InvalidOption, match=rf"batch=100 cannot be combined with {option}="):
        task_options("app.name", given)


@pytest.mark.parametrize("option", REFUSED)
def test_the_default_of_the_project_does_not_apply_to_such_a_task(option: str) -> None:
    given = {"unique": "{task}", option: REFUSED[option]}
    assert task_options("app.name", given, {"batch": 100}).batch is None
    assert task_options("app.name", {"unique": "{task}"}, {"batch": 100}).batch == 100


def test_the_default_of_the_project_does_not_apply_to_built_in_tasks() -> None:
    for name in (HTTP_CALLBACK_TASK, QUEUE_MESSAGE_TASK, END):
        assert task_options(name, {}, {"batch": 100, "priority": 3}).batch is None
    assert task_options("app.name", {}, {"batch": 100}).batch == 100


@pytest.mark.parametrize("value", [1, 1_001, "many", True])
def test_a_batch_has_between_two_and_a_thousand_tasks(value: object) -> None:
    with pytest.raises(InvalidOption, match="batch="):
        task_options("app.name", {"batch": value})


@pytest.mark.parametrize("option", ["timeout", "soft_timeout", "on_orphan"])
def test_a_call_with_such_an_option_fits_no_batch(option: str) -> None:
    options = call_options(CallOptions(), {option: REFUSED[option]})
    assert not options.fits_batch
    assert call_options(CallOptions(), {"priority": 3}).fits_batch
    assert call_options(CallOptions(), {"on_orphan": OnOrphan.RETRY}).fits_batch
