"""Options are validated once, at import or at the call. Every error has the option, the value and
the remedy.
"""

from __future__ import annotations

import math
import re
import uuid
import warnings
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, cast

import pytest
from celery import shared_task

from django_durable_tasks import decorators, durable_task, registry
from django_durable_tasks.choices import OnOrphan, UniqueOnConflict
from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.tasks.options import (
    Backoff,
    CallOptions,
    TaskOptions,
    call_options,
    task_options,
)

BAD = [
    ("queue", "", "1 to 200 characters"),
    ("queue", "a b", "1 to 200 characters"),
    ("queue", "q" * 201, "1 to 200 characters"),
    ("queue", 7, "1 to 200 characters"),
    ("priority", -1, "from 0 to 9"),
    ("priority", 10, "from 0 to 9"),
    ("priority", 1.0, "from 0 to 9"),
    ("priority", True, "from 0 to 9"),
    ("max_attempts", 0, "from 1 to 1000"),
    ("max_attempts", -1, "from 1 to 1000"),
    ("max_attempts", 1_001, "from 1 to 1000"),
    ("max_attempts", "3", "from 1 to 1000"),
    ("max_crashes", 0, "from 1 to 1000"),
    ("timeout", 0, "0.001 seconds or more"),
    ("timeout", math.nan, "number of seconds or a timedelta"),
    ("soft_timeout", -1, "0.001 seconds or more"),
    ("lease", 2.9, "3 seconds or more"),
    ("lease", 1e12, "hundred years or less"),
    ("expected_duration", "1h", "number of seconds or a timedelta"),
    ("expires_in", timedelta(0), "0.001 seconds or more"),
    ("on_orphan", "FORGET", "one of RETRY, DEAD_LETTER"),
]
BAD_AT_IMPORT = [
    ("backoff", "SOMETIMES", "FIXED, LINEAR, EXPONENTIAL"),
    ("backoff", [], "at least one wait"),
    ("backoff_base", -1, "0 seconds or more"),
    ("backoff_max", math.inf, "hundred years or less"),
    ("retry_for", "ValueError", "exception classes"),
    ("give_up_on", [ValueError, 1], "exception classes"),
    ("unique", 3, "template"),
    ("unique_on_conflict", "IGNORE", "RETURN_EXISTING, RAISE, REPLACE"),
    ("rate_limit", "10 a minute", "such as '10/m'"),
    ("rate_limit", "0/m", "such as '10/m'"),
    ("max_concurrency", -1, "0 or more"),
    ("max_concurrency", "3", "0 or more"),
]
BAD_AT_THE_CALL = [
    ("key", "", "non-empty"),
    ("key", "k" * 201, "201 characters, at most 200"),
    ("key", "a\x00b", "printable"),
    ("key", "a\nb", "printable"),
    ("key", 5, "string"),
    ("idempotency_key", "k" * 201, "201 characters, at most 200"),
    ("idempotency_key", "\ud800", "printable"),
    ("run_at", datetime(2026, 1, 1), "is naive"),
    ("run_at", 60, "aware datetime"),
    ("expires_at", "tomorrow", "aware datetime"),
    ("task_id", "task-42", "key="),
    ("on_upstream_failure", "SKIPP", "Did you mean 'SKIP'"),
    ("rate_limit", "10/m", "no option of a call"),
]


@pytest.mark.parametrize(("option", "value", "remedy"), BAD + BAD_AT_IMPORT)
def test_an_invalid_option_of_a_task_names_option_value_and_remedy(
    option: str, value: object, remedy: str
) -> None:
    with pytest.raises(InvalidOption) as refused:
        task_options("job", {option: value})
    _names(str(refused.value), option, remedy)


@pytest.mark.parametrize(("option", "value", "remedy"), BAD + BAD_AT_THE_CALL)
def test_an_invalid_option_of_a_call_names_option_value_and_remedy(
    option: str, value: object, remedy: str
) -> None:
    with pytest.raises(InvalidOption) as refused:
        call_options(CallOptions(), {option: value})
    _names(str(refused.value), option, remedy)


def _names(text: str, option: str, remedy: str) -> None:
    assert text.startswith(option)
    assert remedy in text


def test_the_defaults_are_the_documented_ones() -> None:
    options = task_options("job", {})
    budgets = (options.priority, options.max_attempts, options.max_crashes)
    assert (options.queue, *budgets) == (None, 0, 5, 3)
    retry = options.retry
    assert (retry.backoff, retry.base, retry.maximum) == (Backoff.EXPONENTIAL, 1, 3600)
    assert retry.jitter
    assert {options.timeout, options.soft_timeout, options.expires_in, options.unique} == {None}
    assert (options.on_orphan, options.atomic) == (OnOrphan.RETRY, False)
    assert options.unique_on_conflict == UniqueOnConflict.RETURN_EXISTING


@pytest.mark.parametrize("name", ["", "a b", "ü", "n" * 201, "a\nb"])
def test_an_invalid_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidOption, match="name="):
        task_options(name, {})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"timeout": 10, "soft_timeout": 10}, "soft_timeout=10: it must be less than timeout=10"),
        ({"unique_for": 10}, "unique_for=10 needs unique="),
    ],
)
def test_contradicting_options_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidOption, match=words):
        task_options("job", given)


def test_durations_may_be_timedeltas() -> None:
    options = task_options(
        "job", {"timeout": timedelta(minutes=2), "backoff_max": timedelta(hours=2)}
    )
    assert (options.timeout, options.retry.maximum) == (120, 7200)


@pytest.mark.parametrize(
    ("refuse", "wrong", "right"),
    [
        (lambda wrong: cast("Any", durable_task)(**wrong)(_plain), "max_attemps", "max_attempts"),
        (lambda wrong: cast("Any", durable_task)(**wrong)(_plain), "prioritty", "priority"),
        (partial(call_options, CallOptions()), "runat", "run_at"),
        (partial(call_options, CallOptions()), "idempotence_key", "idempotency_key"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_valid_one(
    refuse: Any, wrong: str, right: str
) -> None:
    with pytest.raises(InvalidOption, match=f"no option '{wrong}'. Did you mean '{right}'"):
        refuse({wrong: 1})


def test_later_options_of_a_call_override_earlier_ones_and_none_resets_them() -> None:
    first = call_options(CallOptions(), {"priority": 3, "key": "k"})
    second = call_options(first, {"priority": None, "queue": "other"})
    assert (second.priority, second.key, second.queue) == (None, "k", "other")
    assert (first.priority, first.queue) == (3, None)


def test_only_overridden_durations_are_stored_with_the_task() -> None:
    options = call_options(
        CallOptions(), {"timeout": 5, "lease": timedelta(seconds=9), "priority": 2}
    )
    assert options.overrides() == {"timeout": 5, "lease": 9}


def test_a_task_id_is_a_uuid_however_it_is_written() -> None:
    task_id = uuid.uuid4()
    for written in (task_id, str(task_id), task_id.hex):
        assert call_options(CallOptions(), {"task_id": written}).task_id == task_id


def test_a_call_accepts_an_aware_datetime() -> None:
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    assert call_options(CallOptions(), {"run_at": moment}).run_at == moment


class _Temporary(Exception):
    """An error that is retried."""


class _Gone(_Temporary):
    """An error that is not retried."""


@pytest.mark.parametrize(
    ("given", "error", "worth"),
    [
        ({}, ValueError(), True),
        ({"retry_for": _Temporary}, _Temporary(), True),
        ({"retry_for": [_Temporary]}, _Gone(), True),
        ({"retry_for": (_Temporary,)}, ValueError(), False),
        ({"give_up_on": (_Gone,)}, _Temporary(), True),
        ({"give_up_on": (_Gone,)}, _Gone(), False),
        ({"retry_for": (_Temporary,), "give_up_on": (_Gone,)}, _Gone(), False),
    ],
)
def test_give_up_on_is_tested_before_retry_for(
    given: dict[str, Any], error: Exception, worth: bool
) -> None:
    options: TaskOptions = task_options("job", given)
    assert options.retryable(error) is worth


def _plain() -> None:
    """Could be the function of a task."""


class _Callable:
    """Can be called."""

    def __call__(self) -> None: ...

    @staticmethod
    def plain() -> None: ...


def _yields() -> Iterator[int]:
    yield 1


async def _streams() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (partial(print, 1), "which is a partial"),
        (partial(_yields), "which is a partial"),
        (len, "len, which is a builtin_function_or_method"),
        ([].append, "which is a builtin_function_or_method"),
        (str.upper, "which is a method_descriptor"),
        (_Callable, "_Callable, which is a class"),
        (int, "int, which is a class"),
        (_Callable(), "which is a _Callable"),
        (vars(_Callable)["plain"], "which is a staticmethod"),
        (_yields, "_yields is a generator"),
        (_streams, "_streams is an async generator"),
        (3, "3, which is a int"),
    ],
)
@pytest.mark.parametrize("options", [{}, {"bind": True}, {"name": "given.name"}])
def test_what_is_no_plain_function_is_refused_at_decoration(
    function: Any, words: str, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidOption, match=re.escape(words)):
        durable_task(**options)(function)


@pytest.mark.parametrize(
    ("option", "remedy"),
    [
        ("time_limit", "Write timeout="),
        ("soft_time_limit", "Write soft_timeout="),
        ("base", "derive it from django_durable_tasks.celery.task.DurableTask"),
        ("acks_late", "Leave it out"),
        ("reject_on_worker_lost", "Leave it out"),
        ("throws", "give_up_on="),
        ("serializer", "Leave it out"),
        ("compression", "Leave it out"),
        ("typing", "Leave it out"),
        ("pydantic", "Validate them in the function"),
        ("expires", "Write expires_in="),
        ("exchange", "Write queue="),
        ("routing_key", "Write queue="),
        ("once", "Write unique='report:{0}' (a template of the arguments), with unique_for="),
        ("lock_expiry", "Write unique="),
        ("resultrepr_maxsize", "results of durable tasks are not logged"),
        ("shared", "Leave it out"),
        ("lazy", "Leave it out"),
        ("Strategy", "base=..."),
        ("Request", "base=..."),
        ("countdown", ".schedule(run_at=...)"),
        ("eta", ".schedule(run_at=...)"),
        ("headers", ".using(headers=...)"),
        ("link", "Workflow.from_canvas(...)"),
        ("run_every", "@recurring(name, interval=...)"),
        ("max_atempts", "Did you mean 'max_attempts'?"),
    ],
)
def test_an_option_of_celery_only_is_refused_with_its_replacement(option: str, remedy: str) -> None:
    with pytest.raises(InvalidOption, match=f"{option}.*{re.escape(remedy)}"):
        cast("Any", durable_task)(**{option: 1})(_plain)


@pytest.mark.parametrize(
    ("option", "remedy"),
    [
        ("max_retries", "Write max_attempts="),
        ("time_limit", "Write timeout="),
        ("expires", "Write expires_in="),
        ("default_retry_delay", "Give it to @durable_task, or raise self.retry(countdown=...)."),
        ("base", "Give it to @durable_task: a class derived from"),
    ],
)
def test_an_option_of_celery_only_is_refused_at_the_call(option: str, remedy: str) -> None:
    with pytest.raises(InvalidOption, match=f"{option}.*{re.escape(remedy)}"):
        call_options(CallOptions(), {option: 1})


def test_a_warning_of_celery_at_the_decoration_names_the_line_of_the_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def warned(**options: Any) -> Any:
        warnings.warn("The name is taken.", UserWarning, stacklevel=2)
        return shared_task(**options)

    monkeypatch.setattr(decorators, "shared_task", warned)
    with pytest.warns(UserWarning, match="The name is taken") as caught:
        durable_task(name="tests.warned")(_plain)
    assert [warning.filename for warning in caught] == [__file__]


def _starting(run_at: str) -> None: ...
def _starting_by_name(*, run_at: str) -> None: ...


@pytest.mark.parametrize("function", [_starting, _starting_by_name])
def test_a_parameter_with_the_name_of_a_schedule_argument_is_refused_at_import(
    function: Any,
) -> None:
    with pytest.raises(
        InvalidOption,
        match=rf"{function.__name__}\(run_at\): .*\.schedule\(run_at=\.\.\.\).*Rename",
    ):
        durable_task(function)


def test_parameters_that_cannot_be_passed_by_keyword_may_have_any_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "_tasks", {})

    def positional(run_at: str, /) -> None: ...
    def collected(**run_at: str) -> None: ...

    durable_task(name="tests.positional")(positional)
    durable_task(name="tests.collected")(collected)
    assert registry.names() == {"tests.positional", "tests.collected"}
