"""Errors carry the option that they refuse, so that no interface reads it from their text."""

from __future__ import annotations

import pickle

import pytest

from django_durable_tasks import exceptions
from django_durable_tasks.exceptions import DurableTasksError, InvalidOption, about

_ERRORS = [
    error
    for error in vars(exceptions).values()
    if isinstance(error, type) and issubclass(error, DurableTasksError)
]


@pytest.mark.parametrize("kind", _ERRORS)
def test_an_error_names_the_option_also_in_another_process(kind: type[DurableTasksError]) -> None:
    error = pickle.loads(pickle.dumps(kind.of("pace", "x", "give seconds.")))  # noqa: S301 - its own
    assert (str(error), error.option) == ("pace='x': give seconds.", "pace")
    assert kind("The reason is empty.").option == ""


@pytest.mark.parametrize(("own", "expected"), [("", "url"), ("port", "port")])
def test_a_function_about_an_option_names_it_unless_the_error_does(own: str, expected: str) -> None:
    @about("url")
    def read() -> None:
        raise InvalidOption("A refusal.", option=own)

    with pytest.raises(InvalidOption) as refused:
        read()
    assert refused.value.option == expected
