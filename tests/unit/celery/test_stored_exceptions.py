"""Exceptions are stored as JSON and restored."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.utils.functional import SimpleLazyObject

from django_durable_tasks.celery.gate import outcome_of
from django_durable_tasks.celery.result import described, rebuilt
from django_durable_tasks.states.machine import EndingKind
from django_durable_tasks.tasks.options import task_options


class Coded(Exception):
    """An exception whose argument differs from its stored one."""

    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")


class Nested:
    """Contains an exception class."""

    class Refused(Exception):
        """An error with arguments."""


class Broken(Exception):
    """An exception that cannot be created from its arguments."""

    def __init__(self) -> None:
        super().__init__("a", "b")


@pytest.mark.parametrize(
    "error", [KeyError("boom"), OSError(2, "gone"), Nested.Refused(1, {"a": [None]})]
)
def test_an_exception_is_restored_with_its_class_and_arguments(error: Exception) -> None:
    back = rebuilt(json.loads(json.dumps(described(error))))
    assert (type(back), back.args if back else None) == (type(error), error.args)


@pytest.mark.parametrize(
    "error", [Coded(5), Broken(), ValueError(object()), ValueError("x" * 70_000)]
)
def test_an_exception_that_cannot_be_rebuilt_is_not_restored(error: Exception) -> None:
    assert rebuilt(described(error)) is None


def test_a_class_defined_in_a_function_is_not_found() -> None:
    class Local(Exception): ...

    assert rebuilt(described(Local("x"))) is None


@pytest.mark.parametrize(
    "found",
    [
        {"module": "os", "name": "system", "args": ["true"]},
        {"module": "builtins", "name": "SystemExit", "args": [1]},
        {"module": "no.such.module", "name": "Error", "args": []},
        {"module": "builtins", "name": "object", "args": []},
    ],
)
def test_only_exceptions_of_loaded_modules_are_created(found: dict[str, Any]) -> None:
    assert rebuilt(found) is None


def test_secrets_are_masked() -> None:
    for error in (
        ValueError("password=hunter2"),
        ValueError({"password": "hunter2"}, [{"user": {"token": "hunter2"}}]),
    ):
        found = described(error)
        assert found is not None
        assert "hunter2" not in json.dumps(found)


def test_arguments_that_are_nested_too_deeply_or_recursive_are_not_stored() -> None:
    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]
    endless: dict[str, Any] = {}
    endless["password"] = endless["more"] = endless
    assert described(ValueError(deep)) is None
    assert described(ValueError(endless)) is None


class Lying(Exception):
    """An exception whose arguments cannot be read."""

    @property
    def args(self) -> Any:  # type: ignore[override]
        """Raise."""
        raise RuntimeError("args")


@pytest.mark.parametrize(
    "error",
    [
        ValueError(SimpleLazyObject(lambda: "x")),
        ValueError([SimpleLazyObject(lambda: 5)]),
        ValueError(SimpleLazyObject(lambda: 1 / 0)),
        Lying("x"),
        ValueError("x" * 50_000_000, list(range(10**6))),
    ],
    ids=["text", "number", "failing", "lying", "huge"],
)
def test_an_exception_whose_arguments_cannot_be_stored_keeps_its_own_text(error: Exception) -> None:
    assert described(error) is None
    outcome = outcome_of(error, task_options("a", {}))
    assert (outcome.error_type, outcome.kind) == (type(error).__name__, EndingKind.FAILED)
    assert outcome.error.startswith(type(error).__name__)
