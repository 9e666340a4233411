"""Which problem an exception becomes."""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from django.core.exceptions import RequestDataTooBig, SuspiciousOperation
from django.db import DatabaseError, DataError, InterfaceError, OperationalError
from django.http import Http404, UnreadablePostError
from rest_framework import exceptions as drf

from django_durable_tasks import exceptions as ours
from django_durable_tasks.api import problems
from django_durable_tasks.api.problems import InvalidPart, Problem
from django_durable_tasks.engine.db.outages import is_unmigrated
from django_durable_tasks.rules.target_types import BUILT_IN_MEMBERS
from django_durable_tasks.rules.tenants.texts import text_for_tenants

logger = logging.getLogger("django_durable_tasks.api")
_REPORTED = 20
"""How many invalid parts of a request one problem names."""
_RETRY_SOON = {"Retry-After": "5"}
# Tasks have to end before. Clients that repeat 429 by themselves would otherwise do it at once.
_RETRY_LATER = {"Retry-After": "60"}
_OPTION = re.compile(r"(?P<option>[a-z_]+)(?:=| (?:is|holds|has)\b)")
_TARGET_MEMBER = re.compile(rf"(?P<member>{'|'.join(sorted(BUILT_IN_MEMBERS))})(?=[=: ])")
_FIELD_OF = {"interval": "interval_seconds", "calendars": "calendar", "workflow": "name"}
_FIELDS = frozenset(
    {
        "run_at",
        "expires_at",
        "priority",
        "workflow",
        "queue",
        "key",
        "idempotency_key",
        "max_attempts",
    }
    | {"depends_on", "timeout", "name", "timezone", "cron", "interval", "start_time", "end_time"}
    | {"start", "end", "until", "rrule", "at", "calendar", "fire_time", "move_to", "limit"}
    | {"delivery_type", "delivery_config", "digest", "quiet_from", "quiet_until", "time_zone"}
    | {"task_name", "schedule", "user_id", "jitter", "expires_in", "misfire_grace", "max_runs"}
    | {"catchup_window", "catchup_pace", "max_catchup_runs", "overlap", "roll", "calendars"}
)


def problem_of(error: Exception) -> Problem:
    """Return the problem of this exception. An unexpected one is logged with its traceback."""
    if isinstance(error, Problem):
        return _without_settings(error)
    for kinds, build in _MAPPING:
        if isinstance(error, kinds):
            return _without_settings(build(error))
    logger.error("A request to the API failed unexpectedly", exc_info=error)
    return Problem(problems.INTERNAL_ERROR, "An unexpected error was logged.")


def _without_settings(problem: Problem) -> Problem:
    """Name no setting: a client cannot change it, and can only ask the operator."""
    problem.detail = text_for_tenants(problem.detail)
    problem.parts = tuple(
        dataclasses.replace(part, detail=text_for_tenants(part.detail)) for part in problem.parts
    )
    return problem


def _of_kind(kind: problems.ProblemType) -> Callable[[Any], Problem]:
    return lambda error: Problem(kind, str(error) or kind.title)


def _not_allowed(error: drf.MethodNotAllowed) -> Problem:
    return Problem(problems.METHOD_NOT_ALLOWED, str(error.detail))


def _validation(error: drf.ValidationError) -> Problem:
    parts = list(islice(_parts(error.detail, "#"), _REPORTED))
    unreadable = any(part.code == "unknown_field" for part in parts)
    kind = problems.MALFORMED if unreadable else problems.INVALID
    first = parts[0] if parts else InvalidPart("#", "The body is not valid.")
    return Problem(kind, f"{first.name}: {first.detail}", parts)


def _parts(detail: Any, pointer: str) -> Iterator[InvalidPart]:
    if isinstance(detail, dict):
        for name, inner in detail.items():
            whole = name == "non_field_errors"
            yield from _parts(inner, pointer if whole else f"{pointer}/{escaped(str(name))[:200]}")
    elif isinstance(detail, list) and all(isinstance(one, str) for one in detail):
        for text in detail:
            yield InvalidPart(pointer, str(text), str(getattr(text, "code", "invalid")))
    elif isinstance(detail, list):
        for index, inner in enumerate(detail):
            yield from _parts(inner, f"{pointer}/{index}")
    else:
        yield InvalidPart(pointer, str(detail))


def escaped(name: str) -> str:
    """Return a key as part of a JSON pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")


def refused_option(error: Exception) -> str:
    """Return the option that the engine refused, with which its message begins; "" if it is no
    field.
    """
    found = _OPTION.match(str(error))
    return found["option"] if found is not None and found["option"] in _FIELDS else ""


def _option(error: Exception) -> Problem:
    name = refused_option(error)
    pointer = f"#/{_FIELD_OF.get(name, name)}" if name else "#"
    return problems.invalid_field(pointer, str(error))


def _target(error: ours.InvalidTarget) -> Problem:
    """Name the member of ``target_config`` that is not valid; the message begins with it."""
    found = _TARGET_MEMBER.match(str(error))
    pointer = "#/target_config" + (f"/{found['member']}" if found is not None else "")
    return problems.invalid_field(pointer, str(error))


def _at(pointer: str, code: str = "invalid") -> Callable[[Any], Problem]:
    return lambda error: problems.invalid_field(pointer, str(error), code)


def _quota(error: ours.QuotaExceeded) -> Problem:
    more = {"violated-policies": [error.quota], "limit": error.limit, "used": error.used}
    return Problem(problems.QUOTA_EXCEEDED, str(error), headers=_RETRY_LATER, more=more)


def _unavailable(error: Exception) -> Problem:
    logger.warning("A request to the API failed because of the database: %s", error)
    return Problem(
        problems.UNAVAILABLE,
        "The database does not answer, or a lock was not free in time.",
        headers=_RETRY_SOON,
    )


def _undecryptable(error: Exception) -> Problem:
    # The text names the key and the row, which concern operators only.
    logger.error("A request to the API failed: %s", error)
    return Problem(problems.UNDECRYPTABLE, "A stored value cannot be decrypted; it was logged.")


def _database(error: DatabaseError) -> Problem:
    if is_unmigrated(error):
        return _unavailable(error)
    logger.error("A request to the API failed unexpectedly", exc_info=error)
    return Problem(problems.INTERNAL_ERROR, "An unexpected error was logged.")


def _out_of_range(error: DataError) -> Problem:
    logger.warning("The database refused a value of a request: %s", error)
    return Problem(problems.INVALID, "The database cannot store one of the values.")


_MAPPING: tuple[tuple[Any, Callable[[Any], Problem]], ...] = (
    (drf.ValidationError, _validation),
    ((drf.NotAuthenticated, drf.AuthenticationFailed), _of_kind(problems.UNAUTHENTICATED)),
    (drf.PermissionDenied, _of_kind(problems.SCOPE_MISSING)),
    (
        (drf.NotFound, Http404),
        lambda error: Problem(problems.NOT_FOUND, problems.NOT_FOUND.title),
    ),
    (drf.MethodNotAllowed, _not_allowed),
    (drf.NotAcceptable, _of_kind(problems.NOT_ACCEPTABLE)),
    (drf.UnsupportedMediaType, _of_kind(problems.UNSUPPORTED_MEDIA_TYPE)),
    (
        (drf.ParseError, UnreadablePostError, SuspiciousOperation),
        _of_kind(problems.MALFORMED),
    ),
    (RequestDataTooBig, _of_kind(problems.BODY_TOO_LARGE)),
    (ours.RequestInProgress, _of_kind(problems.IN_PROGRESS)),
    (
        (ours.IdempotencyConflict, ours.UniqueConflict, ours.TransitionRefused),
        _of_kind(problems.CONFLICT),
    ),
    (ours.QuotaExceeded, _quota),
    (ours.UnknownTask, _at("#/target_config/task", "unknown_task")),
    (ours.InvalidTarget, _target),
    (ours.PayloadTooLarge, _at("#/target_config", "too_large")),
    (ours.InvalidArguments, _at("#/target_config")),
    ((ours.InvalidDependency, ours.DependencyCycle), _at("#/depends_on")),
    (ours.EncryptionError, _undecryptable),
    (ours.DurableTasksError, _option),
    ((OperationalError, InterfaceError), _unavailable),
    (DataError, _out_of_range),
    (DatabaseError, _database),
)
