"""The options of a durable task and of one call, with key templates and retries."""

from __future__ import annotations

import dataclasses
import functools
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from string import Formatter
from typing import Any, TypedDict

from django_durable_tasks.choices import OnOrphan, OnUpstreamFailure, UniqueOnConflict
from django_durable_tasks.exceptions import InvalidArguments, InvalidOption
from django_durable_tasks.limits import scopes
from django_durable_tasks.option_values import (
    checked_count,
    checked_key,
    checked_name,
    chosen,
    hint,
    instant,
    maybe_seconds,
    one_of,
    seconds,
)
from django_durable_tasks.tasks.arguments import encode

# The delay before the next attempt of a failed task.
#
# Delay before attempt n+1, after n failures: FIXED base; LINEAR base x n; EXPONENTIAL min(base x
# 2^(n-1), max); a list by index, its last element for all later ones; a callable receives n.
# Jitter multiplies by a random number from 0.5 to 1.5.


class Backoff(StrEnum):
    """The named backoff functions."""

    FIXED = "FIXED"
    LINEAR = "LINEAR"
    EXPONENTIAL = "EXPONENTIAL"


class Retry(Exception):
    """Raised by a task function to request a retry, ``after`` this many seconds (or a timedelta);
    None uses the retry policy.

    It counts as a failed attempt, so the number of attempts stays limited.
    """

    queue: str | None = None
    """The queue of the next attempts, if it is another one. Set by tasks of this package."""

    def __init__(self, after: float | timedelta | None = None, reason: str = "") -> None:
        self.after = maybe_seconds("Retry.after", after)
        self.reason = reason
        super().__init__(self.after, reason)

    def __str__(self) -> str:
        return self.reason or "the task function requested a retry"


BackoffOption = str | Sequence[float | timedelta] | Callable[[int], float | timedelta]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The retry policy; all numbers in seconds."""

    backoff: Backoff | tuple[float, ...] | Callable[[int], float | timedelta] = Backoff.EXPONENTIAL
    base: float = 1.0
    maximum: float = 3600.0
    jitter: bool = True

    def delay(self, failures: int, draw: float) -> float:
        """Return the seconds to wait after ``failures`` failed attempts (1 or more); ``draw`` is
        random in [0, 1).
        """
        if isinstance(self.backoff, tuple):
            plain = self.backoff[min(failures, len(self.backoff)) - 1]
        elif not isinstance(self.backoff, Backoff):
            plain = seconds("backoff", self.backoff(failures))
        elif self.backoff is Backoff.EXPONENTIAL:
            plain = min(self.base * 2.0 ** min(failures - 1, 60), self.maximum)
        else:
            plain = self.base * (failures if self.backoff is Backoff.LINEAR else 1)
        return plain * (0.5 + draw if self.jitter else 1.0)


def policy(backoff: BackoffOption, base: object, maximum: object, jitter: bool) -> RetryPolicy:
    """Return the validated policy; raises InvalidOption."""
    checked: Backoff | tuple[float, ...] | Callable[[int], float | timedelta]
    if isinstance(backoff, str):
        if backoff not in set(Backoff):
            raise InvalidOption.of(
                "backoff", backoff, "give FIXED, LINEAR, EXPONENTIAL, a list or a callable."
            )
        checked = Backoff(backoff)
    elif callable(backoff):
        checked = backoff
    else:
        if not isinstance(backoff, list | tuple) or not backoff:
            raise InvalidOption.of(
                "backoff", backoff, "give a name, a callable, or a list of at least one wait."
            )
        checked = tuple(seconds("backoff", wait) for wait in backoff)
    return RetryPolicy(
        backoff=checked,
        base=seconds("backoff_base", base),
        maximum=seconds("backoff_max", maximum),
        jitter=bool(jitter),
    )


# The options of a durable task, and those of one call: validated once, immutable, and merged into
# the row when the task is created.


ATTEMPTS_MAX = 1_000
BATCH_MAX = 1_000
HEADERS_MAX_BYTES, HEADERS_MAX_DEPTH = 8_192, 8
_OF_TASKS = ("rate_limit", "max_concurrency")

Exceptions = tuple[type[BaseException], ...]
_ExceptionsOption = type[BaseException] | Sequence[type[BaseException]]


def _exceptions(option: str, value: object) -> Exceptions:
    classes = tuple(value) if isinstance(value, list | tuple) else (value,)
    for item in classes:
        if not (isinstance(item, type) and issubclass(item, BaseException)):
            raise InvalidOption(f"{option} holds {item!r}: give exception classes.", option=option)
    return classes


class DecoratorOptions(TypedDict, total=False):
    """The options of ``@durable_task``, its own and those of Celery, for type checkers."""

    name: str
    queue: str | None
    priority: int
    max_attempts: int
    max_crashes: int
    backoff: BackoffOption
    backoff_base: float | timedelta
    backoff_max: float | timedelta
    jitter: bool
    retry_for: _ExceptionsOption
    give_up_on: _ExceptionsOption
    timeout: float | timedelta | None
    soft_timeout: float | timedelta | None
    lease: float | timedelta | None
    expected_duration: float | timedelta | None
    expires_in: float | timedelta | None
    unique: str | Callable[..., str] | None
    unique_for: float | timedelta | None
    unique_on_conflict: str
    atomic: bool
    on_orphan: str
    rate_limit: str | scopes.PerKey | None
    max_concurrency: int | scopes.PerKey | None
    weight: int
    batch: int | None

    autoretry_for: _ExceptionsOption
    dont_autoretry_for: _ExceptionsOption
    retry_kwargs: Mapping[str, Any]
    retry_backoff: bool | float
    retry_backoff_max: float
    retry_jitter: bool
    max_retries: int | None
    default_retry_delay: float
    base: type | None
    ignore_result: bool
    track_started: bool
    trail: bool
    store_errors_even_if_ignored: bool


class UsingOptions(TypedDict, total=False):
    """The options of ``.using()``, for type checkers."""

    task_id: uuid.UUID | str | None
    run_at: datetime | None
    expires_at: datetime | None
    key: str | None
    idempotency_key: str | None
    headers: Mapping[str, Any] | None
    tenant: Any
    queue: str | None
    priority: int | None
    weight: int | None
    max_attempts: int | None
    max_crashes: int | None
    timeout: float | timedelta | None
    soft_timeout: float | timedelta | None
    lease: float | timedelta | None
    expected_duration: float | timedelta | None
    expires_in: float | timedelta | None
    on_orphan: str | None
    depends_on: Any
    join: str | int
    on_upstream_failure: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """The options of a task; durations in seconds. Created by ``task_options`` only.

    ``given`` are the options that the decorator names. Celery's ``self.retry()`` keeps its own
    meaning unless they include retry options.
    """

    name: str
    queue: str | None = None
    priority: int = 0
    max_attempts: int = 5
    max_crashes: int = 3
    retry: RetryPolicy = RetryPolicy()
    retry_for: Exceptions | None = None
    give_up_on: Exceptions = ()
    timeout: float | None = None
    soft_timeout: float | None = None
    lease: float | None = None
    expected_duration: float | None = None
    expires_in: float | None = None
    unique: str | Callable[..., str] | None = None
    unique_for: float | None = None
    unique_on_conflict: UniqueOnConflict = UniqueOnConflict.RETURN_EXISTING
    atomic: bool = False
    on_orphan: OnOrphan = OnOrphan.RETRY
    rate_limit: scopes.Rate | scopes.PerKey | None = None
    max_concurrency: int | scopes.PerKey | None = None
    weight: int = 1
    batch: int | None = None
    given: frozenset[str] = frozenset()

    @property
    def limits_retries(self) -> bool:
        """Whether the decorator names ``max_attempts``, which then limits ``self.retry()`` too."""
        return "max_attempts" in self.given

    @property
    def spaces_retries(self) -> bool:
        """Whether the decorator names a retry delay, which then applies to ``self.retry()`` too."""
        return not self.given.isdisjoint(_RETRY_FIELDS)

    @property
    def is_limited_in_time(self) -> bool:
        """Whether a run has a soft or a hard time limit."""
        return self.timeout is not None or self.soft_timeout is not None

    def retryable(self, error: BaseException) -> bool:
        """Return whether this error is retried: ``give_up_on`` takes precedence over
        ``retry_for``.
        """
        if isinstance(error, self.give_up_on):
            return False
        return self.retry_for is None or isinstance(error, self.retry_for)


_RETRY_FIELDS = {
    "backoff": "EXPONENTIAL",
    "backoff_base": 1.0,
    "backoff_max": 3600.0,
    "jitter": True,
}
TASK_OPTIONS = frozenset(
    {spec.name for spec in dataclasses.fields(TaskOptions)} - {"retry", "given"} | {*_RETRY_FIELDS}
)
"""The names of the options of ``@durable_task``."""
DEFAULTABLE = frozenset(
    {
        *_RETRY_FIELDS,
        "max_attempts",
        "max_crashes",
        "retry_for",
        "give_up_on",
        "priority",
        "timeout",
        "soft_timeout",
        "lease",
        "expected_duration",
        "expires_in",
        "on_orphan",
        "batch",
    }
)
"""The options that ``DURABLE_TASKS["TASK_DEFAULTS"]`` may set for all tasks of the project."""
SECONDS = {
    "timeout": 0.001,
    "soft_timeout": 0.001,
    "lease": 3.0,
    "expected_duration": 0.001,
    "expires_in": 0.001,
    "unique_for": 0.001,
}
"""The options that are durations, with the least number of seconds."""
COUNTS = {
    "priority": (0, 9),
    "max_attempts": (1, ATTEMPTS_MAX),
    "max_crashes": (1, ATTEMPTS_MAX),
    "weight": (1, scopes.HEAVIEST),
    "batch": (2, BATCH_MAX),
}
"""The options that are whole numbers, with the least and the greatest one."""


def _unique(option: str, value: object) -> object:
    if not (isinstance(value, str) or callable(value)):
        raise InvalidOption.of(option, value, "give a template like '{task}:{0}' or a callable.")
    return value


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "name": checked_name,
    "queue": checked_name,
    "retry_for": _exceptions,
    "give_up_on": _exceptions,
    "on_orphan": partial(one_of, names=OnOrphan),
    "unique_on_conflict": partial(one_of, names=UniqueOnConflict),
    "unique": _unique,
    "rate_limit": scopes.rate_option,
    "max_concurrency": scopes.places_option,
    "atomic": lambda option, value: bool(value),
}
_NOT_IN_BATCH = {
    "timeout": "a time limit ends the process, and with it the other tasks of the batch",
    "soft_timeout": "a soft time limit would interrupt whichever task of the batch runs then",
    "unique_for": "recent successes are looked up for each message",
    "on_orphan": "the tasks behind the one that ended the process would become dead letters too",
}
"""Options that a task in a batch cannot have, with the reason."""
_BUILT_IN = "django_durable_tasks."


def _checked(option: str, value: Any) -> Any:
    if option in SECONDS:
        return maybe_seconds(option, value, minimum=SECONDS[option])
    if option in COUNTS:
        return checked_count(option, value, *COUNTS[option])
    return _CHECKS[option](option, value)


def task_options(
    name: str, kwargs: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
) -> TaskOptions:
    """Return the validated options of a durable task; raises InvalidOption with option, value and
    remedy.

    ``defaults`` apply to options that are not in ``kwargs``, those that the decorator names.
    """
    for option in kwargs:
        if option not in TASK_OPTIONS:
            raise InvalidOption(
                f"@durable_task has no option {option!r}; it has:"
                f" {', '.join(sorted(TASK_OPTIONS))}."
            )
    chosen_ = {**(defaults or {}), **kwargs}
    waits = {option: chosen_.get(option, default) for option, default in _RETRY_FIELDS.items()}
    values = {
        option: _checked(option, value)
        for option, value in chosen_.items()
        if option in TASK_OPTIONS - _RETRY_FIELDS.keys() and value is not None
    }
    if "batch" not in kwargs and (_options_without_batch(values) or name.startswith(_BUILT_IN)):
        # The default of the project is for tasks that may have it. Built-in tasks wait for servers,
        # and the breaker of an endpoint postpones single messages.
        values.pop("batch", None)
    options = TaskOptions(
        **{**values, "name": _checked("name", name)},
        retry=policy(
            waits["backoff"], waits["backoff_base"], waits["backoff_max"], waits["jitter"]
        ),
        given=frozenset(kwargs),
    )
    refused = _options_without_batch({option: getattr(options, option) for option in _NOT_IN_BATCH})
    if options.batch is not None and refused:
        raise InvalidOption(
            f"batch={options.batch} cannot be combined with {refused[0]}=...:"
            f" {_NOT_IN_BATCH[refused[0]]}. Remove one of the two."
        )
    scopes.key_of(options.rate_limit, options.max_concurrency)
    check_time_limits(options.timeout, options.soft_timeout)
    if options.unique_for is not None and options.unique is None:
        raise InvalidOption(
            f"unique_for={options.unique_for:g} needs unique=..., the key that is meant."
        )
    return options


def _options_without_batch(values: Mapping[str, Any]) -> list[str]:
    """Return the options in ``values`` with which a task cannot run in batches."""
    return [option for option in _NOT_IN_BATCH if values.get(option) not in (None, OnOrphan.RETRY)]


def checked_defaults(defaults: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the project's defaults for options of tasks; raises InvalidOption for an option that
    cannot have one.
    """
    for option in defaults:
        if option not in DEFAULTABLE:
            raise InvalidOption(
                f"DURABLE_TASKS['TASK_DEFAULTS'] takes no {option!r}; it takes:"
                f" {', '.join(sorted(DEFAULTABLE))}."
            )
    return defaults


def check_time_limits(timeout: float | None, soft_timeout: float | None) -> None:
    """Check the limits that apply to a run together; raises InvalidOption."""
    if soft_timeout and timeout and soft_timeout >= timeout:
        raise InvalidOption(
            f"soft_timeout={soft_timeout:g}: it must be less than timeout={timeout:g}, which"
            " would end the run first.",
            option="soft_timeout",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """The options of one call, from ``.using(...)`` or ``apply_async``; None leaves the decision to
    the task's options.
    """

    task_id: uuid.UUID | None = None
    run_at: datetime | None = None
    expires_at: datetime | None = None
    key: str | None = None
    idempotency_key: str | None = None
    headers: Mapping[str, Any] | None = None
    tenant: Any = None
    queue: str | None = None
    priority: int | None = None
    weight: int | None = None
    max_attempts: int | None = None
    max_crashes: int | None = None
    timeout: float | None = None
    soft_timeout: float | None = None
    lease: float | None = None
    expected_duration: float | None = None
    expires_in: float | None = None
    on_orphan: OnOrphan | None = None
    depends_on: Any = None
    join: str | int = "ALL"
    on_upstream_failure: str | None = None

    @property
    def fits_batch(self) -> bool:
        """Whether a call with these options may run in a batch."""
        options = {option: getattr(self, option, None) for option in _NOT_IN_BATCH}
        return not _options_without_batch(options)

    def overrides(self) -> dict[str, Any]:
        """Return the options that differ from the registered ones and are read when a run starts,
        as stored in the row.
        """
        names = ("timeout", "soft_timeout", "lease", "max_attempts", "headers")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


def checked_headers(value: object) -> dict[str, Any]:
    """Return the headers of a call, small JSON under string keys; raises InvalidOption."""
    if not isinstance(value, Mapping):
        raise InvalidOption.of("headers", value, "give a mapping of names to values.")
    try:
        encode("headers", (), dict(value), max_bytes=HEADERS_MAX_BYTES, max_depth=HEADERS_MAX_DEPTH)
    except InvalidArguments as invalid:
        raise InvalidOption(f"headers cannot be kept: {invalid}") from None
    return dict(value)


def call_options(before: CallOptions, options: Mapping[str, Any]) -> CallOptions:
    """Return the call options with these changes; raises InvalidOption."""
    names = {spec.name for spec in dataclasses.fields(CallOptions)}
    changes: dict[str, Any] = {}
    for option, value in options.items():
        if option in _OF_TASKS:
            raise InvalidOption(
                f"{option}={value!r} is no option of a call: give it to @durable_task, to"
                " DURABLE_TASKS['LIMITS'], or to `manage.py durable limit set`.",
                option=option,
            )
        if option not in names:
            remedy = hint(option, names) or f"It has: {', '.join(sorted(names))}."
            raise InvalidOption(f".using() has no option {option!r}. {remedy}")
        if value is None or option in ("tenant", "depends_on", "join"):
            changes[option] = value
        elif option == "task_id":
            try:
                changes[option] = uuid.UUID(str(value))
            except ValueError:
                raise InvalidOption.of(
                    "task_id", value, "a durable task's id is a UUID; name it by key=... instead."
                ) from None
        elif option == "on_upstream_failure":
            changes[option] = chosen(option, value, OnUpstreamFailure)
        elif option in ("run_at", "expires_at"):
            changes[option] = instant(option, value)
        elif option == "headers":
            changes[option] = checked_headers(value)
        elif option in ("key", "idempotency_key"):
            changes[option] = checked_key(option, value)
        else:
            changes[option] = _checked(option, value)
    return dataclasses.replace(before, **changes)


# Templates of keys with the syntax of ``str.format``: ``unique=``, ``PerKey`` and ``overlap_key``.
# Pure.


_LONGEST = 200
_SPEC = re.compile(
    r"(?s:.?[<>=^])?[-+ ]?z?#?0?(?P<width>\d+)?[,_]?(?:\.(?P<precision>\d+))?[a-zA-Z%]?\Z"
)


@functools.lru_cache(maxsize=1_000)
def checked_template(option: str, template: str) -> str:
    """Return the template; raises InvalidOption if it is malformed or pads a field beyond the
    length of a key.

    The check does not format it: ``{task:>300000000}`` would allocate as many characters.
    """
    try:
        specs = [spec for _, _, spec, _ in Formatter().parse(template) if spec]
    except ValueError as error:
        raise InvalidOption.of(option, template, f"{error}.") from None
    for spec in specs:
        if "{" in spec:
            raise InvalidOption.of(
                option, template, f"a width that is an argument is not allowed, {spec!r}."
            )
        match = _SPEC.match(spec)
        sizes = [size for size in (match["width"], match["precision"]) if size] if match else []
        if any(len(size) > 9 or int(size) > _LONGEST for size in sizes):
            raise InvalidOption.of(
                option,
                template,
                f"{spec!r} asks for more than {_LONGEST} characters, the longest key.",
            )
    return template


def formatted(option: str, template: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return the key of a template with these arguments; raises InvalidOption."""
    try:
        return checked_key(option, checked_template(option, template).format(*args, **kwargs))
    except InvalidOption:
        raise
    except (LookupError, AttributeError, TypeError) as missing:
        raise InvalidOption(
            f"{option}={template!r} names {missing}, which this call does not pass.", option=option
        ) from None
    except Exception as error:  # noqa: BLE001 - formatting calls the arguments' own code
        raise InvalidOption.of(option, template, f"{type(error).__name__}: {error}.") from None


# ``Schedule``: returned by a task function to create another task in the transaction of its
# success.


@dataclass(frozen=True, slots=True)
class Schedule:
    """One task to create: ``Schedule(send_reminder, (event.pk,), run_at=...)``; options as for
    ``.using()``.
    """

    task: Any
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    run_at: datetime | None = None
    options: dict[str, Any] = field(default_factory=dict)
