"""Celery's retry options and the corresponding options of a durable task, and the refused ones."""

from __future__ import annotations

import uuid
from typing import Any, cast

import pytest
from celery import Task, current_app

from django_durable_tasks import durable_task, registry
from django_durable_tasks.celery.task import DurableTask
from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.tasks.options import TaskOptions, task_options


def _decorated(name: str, **options: Any) -> tuple[Any, TaskOptions]:
    task = cast("Any", durable_task)(name=f"tests.retries.{name}", **options)(_body)
    return task, registry.get(f"tests.retries.{name}").options


def _body() -> None: ...


@pytest.mark.parametrize(
    ("given", "max_attempts", "max_retries", "delay"),
    [
        ({}, 5, 3, 180),
        ({"autoretry_for": (ValueError,)}, 4, 3, 180),
        ({"max_retries": 0}, 1, 0, 180),
        ({"max_retries": None}, 1_000, None, 180),
        ({"retry_kwargs": {"max_retries": 7}}, 8, 3, 180),
        ({"default_retry_delay": 2}, 4, 3, 2),
        ({"max_attempts": 2}, 2, 1, 180),
        ({"max_attempts": 2, "autoretry_for": (ValueError,)}, 2, 1, 180),
        ({"backoff": "FIXED"}, 5, 3, None),
        ({"backoff": "FIXED", "default_retry_delay": 9}, 4, 3, 9),
    ],
)
def test_celerys_retry_options_keep_their_meaning(
    given: dict[str, Any], max_attempts: int, max_retries: int | None, delay: float | None
) -> None:
    task, options = _decorated(uuid.uuid4().hex, **given)
    assert (options.max_attempts, task.max_retries, task.default_retry_delay) == (
        max_attempts,
        max_retries,
        delay,
    )


def test_autoretry_for_retries_only_the_named_errors() -> None:
    assert _decorated("named", autoretry_for=(ValueError,))[1].retry_for == ()
    assert _decorated("ours", autoretry_for=(ValueError,), retry_for=(OSError,))[1].retry_for == (
        OSError,
    )
    assert _decorated("empty", autoretry_for=())[1].retry_for == ()


@pytest.mark.parametrize(
    ("given", "retry_for"),
    [
        ({}, None),
        ({"max_retries": 2}, ()),
        ({"default_retry_delay": 2}, ()),
        ({"retry_backoff": True}, ()),
        ({"max_retries": 2, "retry_for": (OSError,)}, (OSError,)),
        ({"default_retry_delay": 2, "max_attempts": 3}, None),
        ({"autoretry_for": (ValueError,), "max_attempts": 3}, ()),
    ],
)
def test_with_celerys_options_an_error_that_none_of_them_names_is_not_retried(
    given: dict[str, Any], retry_for: tuple[type, ...] | None
) -> None:
    assert _decorated(uuid.uuid4().hex, **given)[1].retry_for == retry_for


class _Patient(DurableTask):
    """A task class with retry options."""

    abstract = True
    autoretry_for = (ValueError,)
    max_retries = 7
    default_retry_delay = 9


class _More(_Patient):
    abstract = True
    max_retries = 8


@pytest.mark.parametrize(
    ("given", "max_attempts", "max_retries", "delay", "retry_for"),
    [
        ({"base": _Patient}, 8, 7, 9, ()),
        ({"base": _More}, 9, 8, 9, ()),
        ({"base": _More, "max_retries": 1, "default_retry_delay": 2}, 2, 1, 2, ()),
        ({"base": _More, "max_attempts": 3, "retry_for": (OSError,)}, 3, 2, 9, (OSError,)),
    ],
)
def test_the_retry_options_of_a_class_are_defaults_of_the_decorator(
    given: dict[str, Any],
    max_attempts: int,
    max_retries: int,
    delay: float,
    retry_for: tuple[type, ...],
) -> None:
    task, options = _decorated(uuid.uuid4().hex, **given)
    assert (options.max_attempts, task.max_retries, task.default_retry_delay) == (
        max_attempts,
        max_retries,
        delay,
    )
    assert options.retry_for == retry_for


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"max_retries": 3, "max_attempts": 4},
            "max_retries=3 and max_attempts=...: give one of them",
        ),
        ({"max_retries": -1}, "max_retries=-1: give a whole number from 0 to 999"),
        ({"retry_kwargs": {"max_retries": "5"}}, "max_retries='5': give a whole number"),
        ({"retry_kwargs": {"queue": "slow"}}, "takes countdown and max_retries there"),
        ({"default_retry_delay": -1}, "default_retry_delay"),
    ],
)
def test_an_unsupported_retry_option_is_refused_at_import(
    given: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidOption, match=words):
        _decorated("refused", **given)


def test_the_projects_defaults_apply_after_the_decorator_and_celerys_options(
    settings: Any,
) -> None:
    settings.DURABLE_TASKS = {
        "TASK_DEFAULTS": {"max_attempts": 9, "timeout": 60, "backoff": "LINEAR"}
    }
    _, plain = _decorated("defaults")
    assert (plain.max_attempts, plain.timeout, plain.retry.backoff) == (9, 60, "LINEAR")
    task, own = _decorated("own", max_attempts=2, timeout=5)
    assert (own.max_attempts, own.timeout, task.max_retries) == (2, 5, 1)
    task, celerys = _decorated("celerys", autoretry_for=(ValueError,))
    assert (celerys.max_attempts, task.max_retries, task.default_retry_delay) == (4, 3, 180)


def test_a_default_that_no_task_can_have_is_refused(settings: Any) -> None:
    settings.DURABLE_TASKS = {"TASK_DEFAULTS": {"unique": "{task}"}}
    with pytest.raises(
        InvalidOption, match=r"TASK_DEFAULTS'\] takes no 'unique'; it takes: .*max_attempts"
    ):
        _decorated("bad_default")


def test_the_defaults_are_validated_like_the_options_of_a_decorator() -> None:
    with pytest.raises(InvalidOption, match="max_attempts=0"):
        task_options("job", {}, {"max_attempts": 0})


def test_a_class_that_is_registered_with_celery_itself_is_refused_with_the_right_form() -> None:
    class Report(DurableTask):
        name = "tests.retries.report"

    with pytest.raises(
        InvalidOption,
        match=r"@durable_task\(bind=True, base=Report\) instead of app\.register_task",
    ):
        current_app.register_task(Report())
    current_app.tasks.pop("tests.retries.report", None)


def test_a_base_that_is_not_a_durable_task_is_refused() -> None:
    with pytest.raises(
        InvalidOption, match=r"derive it from django_durable_tasks\.celery\.task\.DurableTask"
    ):
        _decorated("base", base=Task)
