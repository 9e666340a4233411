"""Errors as problem details (RFC 9457), and which problem an exception becomes."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from django.core.exceptions import RequestDataTooBig, SuspiciousOperation
from django.db import DatabaseError, DataError, InterfaceError, OperationalError
from django.http import Http404, UnreadablePostError
from rest_framework import exceptions as drf

from django_durable_tasks import exceptions as ours
from django_durable_tasks.masking import text_for_tenants
from django_durable_tasks.store.errors import is_unmigrated

MEDIA_TYPE = "application/problem+json"


@dataclass(frozen=True, slots=True)
class ProblemType:
    """A kind of error: its code, status and title, and what the client can do."""

    code: str
    status: int
    title: str
    remedy: str


@dataclass(frozen=True, slots=True)
class InvalidPart:
    """What is wrong with one part of a request.

    ``place`` is ``pointer`` (``name`` is a JSON pointer into the body), ``parameter`` or
    ``header``.
    """

    name: str
    detail: str
    code: str = "invalid"
    place: str = "pointer"

    def as_json(self) -> dict[str, str]:
        """Return the entry of ``errors``."""
        return {self.place: self.name, "detail": self.detail, "code": self.code}


class Problem(Exception):
    """An answer with an error. ``more`` is added to the body."""

    def __init__(
        self,
        kind: ProblemType,
        detail: str,
        parts: Iterable[InvalidPart] = (),
        *,
        headers: Mapping[str, str] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.kind, self.detail, self.parts = kind, detail, tuple(parts)
        self.headers, self.more = dict(headers or {}), dict(more or {})

    def as_json(self, instance: str, request_id: str, types: str) -> dict[str, Any]:
        """Return the body; ``types`` is the address below which problem types are described."""
        body: dict[str, Any] = {
            "type": f"{types}{self.kind.code}",
            "title": self.kind.title,
            "status": self.kind.status,
            "detail": self.detail,
            "instance": instance,
            "request_id": request_id,
            "code": self.kind.code,
        }
        if self.parts:
            body["errors"] = [invalid.as_json() for invalid in self.parts]
        return {**body, **self.more}


MALFORMED = ProblemType(
    "malformed", 400, "The request cannot be read", "Send valid JSON, known fields and parameters."
)
UNAUTHENTICATED = ProblemType(
    "unauthenticated",
    401,
    "The request has no valid API key",
    "Send `Authorization: Bearer <key>` with a key that is neither expired nor revoked; staff"
    " users log in to the admin if API_SESSIONS is set.",
)
SCOPE_MISSING = ProblemType(
    "scope_missing", 403, "The API key may not do this", "Use a key with the scope that is named."
)
PERMISSION_MISSING = ProblemType(
    "permission_missing",
    403,
    "The user may not do this",
    "Ask an operator for the permission that is named.",
)
CSRF_FAILED = ProblemType(
    "csrf_failed",
    403,
    "The request has no valid CSRF token",
    "Send the value of the CSRF cookie in the header X-CSRFToken.",
)
NOT_FOUND = ProblemType(
    "not_found", 404, "There is no such object", "Check the address; the object may be deleted."
)
METHOD_NOT_ALLOWED = ProblemType(
    "method_not_allowed", 405, "The method is not allowed here", "Use one of the Allow header."
)
NOT_ACCEPTABLE = ProblemType(
    "not_acceptable", 406, "The answer has another media type", "Accept application/json."
)
CONFLICT = ProblemType(
    "conflict", 409, "The state of the object does not allow this", "Read the object again."
)
IN_PROGRESS = ProblemType(
    "in_progress",
    409,
    "A request with this Idempotency-Key is running",
    "Repeat the request after the time in Retry-After.",
)
STALE_VERSION = ProblemType(
    "stale_version", 412, "The object has changed", "Read it again and send its present ETag."
)
BODY_TOO_LARGE = ProblemType(
    "body_too_large", 413, "The body is too large", "Send less, or store the data elsewhere."
)
UNSUPPORTED_MEDIA_TYPE = ProblemType(
    "unsupported_media_type", 415, "The body is not JSON", "Send Content-Type: application/json."
)
INVALID = ProblemType(
    "invalid", 422, "A value is not allowed", "Correct the fields that `errors` names."
)
KEY_REUSED = ProblemType(
    "idempotency_key_reused",
    422,
    "The Idempotency-Key belongs to another request",
    "Send the same request again, or use a new key.",
)
VERSION_REQUIRED = ProblemType(
    "version_required", 428, "If-Match is missing", "Send If-Match with the ETag of the object."
)
TOO_MANY_REQUESTS = ProblemType(
    "too_many_requests", 429, "Too many requests", "Repeat after the time in Retry-After."
)
QUOTA_EXCEEDED = ProblemType(
    "quota_exceeded",
    429,
    "A quota of the tenant is used up",
    "Wait until open tasks end, delete what is not needed, or ask the operator for more; GET"
    " /quota shows the usage.",
)
INTERNAL_ERROR = ProblemType(
    "internal_error", 500, "The server failed", "Report the request_id to the operator."
)
UNAVAILABLE = ProblemType(
    "unavailable", 503, "The database does not answer", "Repeat after the time in Retry-After."
)
NOT_READY = ProblemType(
    "not_ready", 503, "The server is not ready", "Repeat after the time in Retry-After."
)
UNDECRYPTABLE = ProblemType(
    "undecryptable",
    409,
    "A stored value cannot be decrypted",
    "Send the whole target_config again, or ask the operator, whose log has the details.",
)

TYPES = {kind.code: kind for kind in list(globals().values()) if isinstance(kind, ProblemType)}


def invalid_parameter(
    name: str, detail: str, code: str = "invalid", kind: ProblemType = MALFORMED
) -> Problem:
    """Return the problem of a query parameter."""
    return Problem(kind, f"{name}: {detail}", [InvalidPart(name, detail, code, "parameter")])


def invalid_header(name: str, detail: str, kind: ProblemType = MALFORMED) -> Problem:
    """Return the problem of a header."""
    return Problem(kind, f"{name}: {detail}", [InvalidPart(name, detail, place="header")])


def invalid_field(pointer: str, detail: str, code: str = "invalid") -> Problem:
    """Return the problem of a field of the body."""
    return Problem(INVALID, f"{pointer}: {detail}", [InvalidPart(pointer, detail, code)])


def problem_in(pointer: str, error: Exception) -> Problem:
    """Return the problem of an error about the object at this place of the body."""
    problem = problem_of(error)
    problem.parts = tuple(
        dataclasses.replace(invalid, name=f"{pointer}{invalid.name.removeprefix('#')}")
        for invalid in problem.parts
    )
    if problem.parts:
        problem.detail = f"{problem.parts[0].name}: {problem.parts[0].detail}"
    return problem


logger = logging.getLogger("django_durable_tasks.contrib.api")
_REPORTED = 20
"""How many invalid parts of a request one problem names."""
_RETRY_SOON = {"Retry-After": "5"}
# Tasks have to end before. Clients that repeat 429 by themselves would otherwise do it at once.
_RETRY_LATER = {"Retry-After": "60"}
_FIELD_OF = {"interval": "interval_seconds", "calendars": "calendar", "workflow": "name"}


def problem_of(error: Exception) -> Problem:
    """Return the problem of this exception. An unexpected one is logged with its traceback.

    It names no setting: a client cannot change it, and can only ask the operator.
    """
    problem = error if isinstance(error, Problem) else _problem(error)
    problem.detail = text_for_tenants(problem.detail)
    problem.parts = tuple(
        dataclasses.replace(invalid, detail=text_for_tenants(invalid.detail))
        for invalid in problem.parts
    )
    return problem


def _problem(error: Exception) -> Problem:
    text = str(error)
    for kinds, kind in _KINDS:
        if isinstance(error, kinds):
            return Problem(kind, text or kind.title)
    match error:
        case drf.ValidationError():
            invalid_parts = list(islice(_parts(error.detail, "#"), _REPORTED))
            unreadable = any(invalid.code == "unknown_field" for invalid in invalid_parts)
            first = (
                invalid_parts[0] if invalid_parts else InvalidPart("#", "The body is not valid.")
            )
            detail = f"{first.name}: {first.detail}"
            return Problem(MALFORMED if unreadable else INVALID, detail, invalid_parts)
        case drf.NotFound() | Http404():
            return Problem(NOT_FOUND, NOT_FOUND.title)
        case ours.QuotaExceeded():
            more = {"violated-policies": [error.quota], "limit": error.limit, "used": error.used}
            return Problem(QUOTA_EXCEEDED, text, headers=_RETRY_LATER, more=more)
        case ours.UnknownTask():
            return invalid_field("#/target_config/task", text, "unknown_task")
        case ours.InvalidTarget():
            # The option is the member of `target_config` that is not valid.
            return invalid_field("/".join(filter(None, ("#/target_config", error.option))), text)
        case ours.PayloadTooLarge():
            return invalid_field("#/target_config", text, "too_large")
        case ours.InvalidArguments():
            return invalid_field("#/target_config", text)
        case ours.InvalidDependency() | ours.DependencyCycle():
            return invalid_field("#/depends_on", text)
        case ours.EncryptionError():
            # The text names the key and the row, which concern operators only.
            logger.error("A request to the API failed: %s", error)
            detail = "A stored value cannot be decrypted; it was logged."
            return Problem(UNDECRYPTABLE, detail)
        case ours.DurableTasksError():
            name = _FIELD_OF.get(error.option, error.option)
            return invalid_field(f"#/{name}" if name else "#", text)
        case DataError():
            logger.warning("The database refused a value of a request: %s", error)
            return Problem(INVALID, "The database cannot store one of the values.")
        case OperationalError() | InterfaceError():
            unavailable = True
        case DatabaseError():
            unavailable = is_unmigrated(error)
        case _:
            unavailable = False
    if unavailable:
        logger.warning("A request to the API failed because of the database: %s", error)
        detail = "The database does not answer, or a lock was not free in time."
        return Problem(UNAVAILABLE, detail, headers=_RETRY_SOON)
    logger.error("A request to the API failed unexpectedly", exc_info=error)
    return Problem(INTERNAL_ERROR, "An unexpected error was logged.")


_KINDS: tuple[tuple[tuple[type[Exception], ...], ProblemType], ...] = (
    ((drf.NotAuthenticated, drf.AuthenticationFailed), UNAUTHENTICATED),
    ((drf.PermissionDenied,), SCOPE_MISSING),
    ((drf.MethodNotAllowed,), METHOD_NOT_ALLOWED),
    ((drf.NotAcceptable,), NOT_ACCEPTABLE),
    ((drf.UnsupportedMediaType,), UNSUPPORTED_MEDIA_TYPE),
    # One of the suspicious operations of the next line.
    ((RequestDataTooBig,), BODY_TOO_LARGE),
    ((drf.ParseError, UnreadablePostError, SuspiciousOperation), MALFORMED),
    ((ours.RequestInProgress,), IN_PROGRESS),
    ((ours.IdempotencyConflict, ours.UniqueConflict, ours.TransitionRefused), CONFLICT),
)
"""Errors whose own text is the detail, and their problems."""


def _parts(detail: Any, pointer: str) -> Iterator[InvalidPart]:
    if isinstance(detail, dict):
        for name, inner in detail.items():
            whole = name == "non_field_errors"
            yield from _parts(inner, pointer if whole else f"{pointer}/{escaped(str(name))[:200]}")
    elif isinstance(detail, list) and all(isinstance(item, str) for item in detail):
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
