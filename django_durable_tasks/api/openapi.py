"""The OpenAPI 3.1 document of the API, from the attributes of the endpoints."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from drf_spectacular.extensions import (
    OpenApiAuthenticationExtension,
    OpenApiSerializerExtension,
)
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.settings import patched_settings
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, PolymorphicProxySerializer
from rest_framework import serializers

from django_durable_tasks import conf
from django_durable_tasks.api import problems
from django_durable_tasks.api.authentication import TENANT_HEADER
from django_durable_tasks.api.fields import AnyJson, Body, Flag, Id, Integer, Text, rendered
from django_durable_tasks.api.lists import DEFAULT_LIMIT, LIMIT_MAX
from django_durable_tasks.api.sent_requests import add_webhooks
from django_durable_tasks.choices import Status

VERSION = "1"
_SETTINGS: Mapping[str, Any] = {
    "TITLE": "django-durable-tasks",
    "DESCRIPTION": "Tasks, recurring tasks and workflows of one tenant.",
    "VERSION": VERSION,
    "OAS_VERSION": "3.1.0",
    "POSTPROCESSING_HOOKS": [],
    "PREPROCESSING_HOOKS": [],
    "SORT_OPERATIONS": True,
    "ENUM_NAME_OVERRIDES": {},
    "SCHEMA_PATH_PREFIX": "",
    "COMPONENT_SPLIT_REQUEST": False,
}
_TIME = "A time with its offset, such as 2026-03-07T00:00:00Z."
_QUERY: Mapping[str, tuple[Any, str]] = {
    "status": (OpenApiTypes.STR, "Only objects in this status."),
    "queue": (OpenApiTypes.STR, "Only tasks of this queue."),
    "name": (OpenApiTypes.STR, "Only tasks of this name."),
    "from": (OpenApiTypes.DATETIME, f"Created at or after this time. {_TIME}"),
    "to": (OpenApiTypes.DATETIME, f"Created before this time. {_TIME}"),
    "at": (OpenApiTypes.DATETIME, f"The fire time. {_TIME}"),
    "include": (OpenApiTypes.STR, "Fields to add: target_config, result, progress."),
    "state": (OpenApiTypes.STR, "open (default) or all."),
    "operation": (OpenApiTypes.STR, "Only entries of this operation, such as tasks.cancel."),
    "actor": (OpenApiTypes.STR, "Only entries of this key or user."),
    "object_id": (OpenApiTypes.STR, "Only entries about the object with this id or name."),
    "object_type": (OpenApiTypes.STR, "Only entries about objects of this type."),
    "cursor": (OpenApiTypes.STR, "next_cursor or prev_cursor of another page."),
    "upstream": (OpenApiTypes.UUID, "The id of the upstream task."),
    "url": (OpenApiTypes.STR, "The URL of the callbacks. Only its origin has an effect."),
    "endpoint": (OpenApiTypes.STR, "The `endpoint` of the callbacks, if they have one."),
    "reason": (OpenApiTypes.STR, "Why; kept with the name of the key."),
}
_TENANT = "Of a session: the slug of the tenant. An API key has one tenant."
_CSRF = "Of a session: the value of the CSRF cookie."
_REQUIRED = frozenset({"at", "upstream", "url"})
_LIMIT = {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": DEFAULT_LIMIT}
_CHOICES = {"state": ["open", "all"]}
_ALWAYS = (problems.MALFORMED, problems.NOT_FOUND, problems.NOT_ACCEPTABLE, problems.UNAVAILABLE)
_WITH_KEY = (problems.UNAUTHENTICATED, problems.SCOPE_MISSING, problems.TOO_MANY_REQUESTS)
_OF_WRITES = (
    problems.CONFLICT,
    problems.BODY_TOO_LARGE,
    problems.UNSUPPORTED_MEDIA_TYPE,
    problems.INVALID,
)
_OF_PATCH = (problems.STALE_VERSION, problems.VERSION_REQUIRED)

KEY_SENT_MAX = 202
"""The length of an Idempotency-Key of 200 characters in quotes."""
_KEY = {
    "type": "string",
    "minLength": 1,
    "maxLength": KEY_SENT_MAX,
    "pattern": "^ *[!-~][ -~]*$",
}


class ProblemAnswer(Body):
    """An error (RFC 9457)."""

    type = Text()
    title = Text()
    status = Integer()
    detail = Text(allow_blank=True)
    instance = Text()
    request_id = Text()
    code = Text()
    errors = serializers.ListField(child=AnyJson(), required=False)  # type: ignore[assignment]


class DryRunAnswer(Body):
    """What a write would change."""

    dry_run = Flag()
    would_answer = Integer()
    changes = AnyJson()
    would_return = AnyJson()


class TaskStatusAnswer(Body):
    """The identity of a task."""

    task_id = Id()


@functools.cache
def list_of(answer: type[Body]) -> type[Body]:
    """Return the serializer of a page of these answers."""
    fields = {
        "data": serializers.ListField(child=answer()),
        "next_cursor": Text(allow_null=True, required=False),
        "prev_cursor": Text(allow_null=True, required=False),
        "has_more": Flag(required=False),
        "__doc__": f"A page. {answer.__doc__}",
    }
    return type(f"{answer.__name__.removesuffix('Answer')}Page", (Body,), fields)


@functools.cache
def _or_dry_run(answer: type[Body]) -> Any:
    return PolymorphicProxySerializer(
        component_name=f"{answer.__name__}OrDryRun",
        serializers=[answer, DryRunAnswer],
        resource_type_field_name=None,
    )


class ApiKeyScheme(OpenApiAuthenticationExtension):
    """The API key as a security scheme."""

    target_class = "django_durable_tasks.api.authentication.ApiKeyAuthentication"
    name = "apiKey"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        """Return the scheme."""
        return {"type": "http", "scheme": "bearer", "bearerFormat": "ddt_live_..."}


class SessionScheme(OpenApiAuthenticationExtension):
    """The session of a staff user as a security scheme."""

    target_class = "django_durable_tasks.api.authentication.StaffSessionAuthentication"
    name = "session"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        """Return the scheme."""
        text = (
            "The session of a staff user, if the installation sets API_SESSIONS. A write needs the"
            " header X-CSRFToken. The header Durable-Tenant chooses the tenant by its slug."
        )
        name = settings.SESSION_COOKIE_NAME
        return {"type": "apiKey", "in": "cookie", "name": name, "description": text}


class BodyScheme(OpenApiSerializerExtension):
    """Bodies refuse unknown fields."""

    target_class = "django_durable_tasks.api.fields.Body"
    match_subclasses = True

    def map_serializer(self, auto_schema: Any, direction: str) -> dict[str, Any]:
        """Return the schema of a body or an answer."""
        found: dict[str, Any] = auto_schema._map_serializer(
            self.target, direction, bypass_extensions=True
        )
        if direction == "request":
            found["additionalProperties"] = False
        return found


class EndpointSchema(AutoSchema):
    """Describes an endpoint by its ``bodies``, ``answers``, ``parameters`` and ``scopes``."""

    def is_excluded(self) -> bool:
        """Leave out the endpoint that answers for unknown addresses."""
        return bool(self.view.is_hidden)

    def get_operation_id(self) -> str:
        """Return the name of the endpoint and the method, which do not change with the path."""
        name = type(self.view).__name__.removesuffix("ApiEndpoint")
        return f"{self.method.lower()}{name}"

    def get_tags(self) -> list[str]:
        """Return the first part of the path."""
        parts = [part for part in self.path.split("/") if part not in ("", "api", "v1")]
        return parts[:1] or ["api"]

    def get_request_serializer(self) -> Any:
        """Return the body of a write."""
        return self.view.bodies.get(self.method)

    def get_override_parameters(self) -> list[Any]:
        """Return the parameters of the query and the headers."""
        names = sorted(self.view.parameters.get(self.method, ()))
        found = [_query_parameter(name) for name in names]
        if self.method in ("POST", "PATCH", "DELETE"):
            found.append(_query("dry_run", {"type": "string", "enum": ["0", "1"]}, "1: only ask."))
            found.append(_header("Idempotency-Key", _KEY, required=False))
        if self.method == "PATCH":
            found.append(_header("If-Match", {"type": "string", "minLength": 1}, required=True))
        return found + (self._of_sessions() if conf.settings().API_SESSIONS else [])

    def _of_sessions(self) -> list[Any]:
        """Return the headers of staff sessions, so that the page to try the API has fields for
        them. An installation without sessions does not document them.
        """
        if not self.view.scopes:
            return []
        found = [_header(TENANT_HEADER, {"type": "string"}, required=False, text=_TENANT)]
        if self.method != "GET":
            found.append(_header("X-CSRFToken", {"type": "string"}, required=False, text=_CSRF))
        return found

    def get_response_serializers(self) -> Any:
        """Return the answer and the problems of the method."""
        view, method = self.view, self.method
        answer, found = view.answers.get(method), dict[Any, Any]()
        if view.media_types:
            found[200, view.media_types[0]] = OpenApiTypes.STR
        elif method == "GET":
            found[200] = OpenApiResponse(answer or OpenApiTypes.OBJECT, "Found.")
        else:
            found[200] = OpenApiResponse(_or_dry_run(answer or TaskStatusAnswer), "Done.")
        if method == "POST" and getattr(view, "creates", False):
            found[201] = OpenApiResponse(answer, "Created.")
        if getattr(view, "starts_operation", False):
            found[202] = OpenApiResponse(
                answer, "Started; Location is the address of its progress."
            )
        if getattr(view, "may_be_unavailable", False):
            found[503] = OpenApiResponse(answer or OpenApiTypes.OBJECT, "Nothing starts.")
        for kind in self._problems():
            found.setdefault((kind.status, problems.MEDIA_TYPE), _problem(kind))
        return found

    def _problems(self) -> list[problems.ProblemType]:
        found = [*_ALWAYS, *(_WITH_KEY if self.view.scopes else ())]
        if self.method != "GET":
            found += _OF_WRITES
        elif self.view.has_refusals:
            found.append(problems.INVALID)
        return found + list(_OF_PATCH if self.method == "PATCH" else ())


def _problem(kind: problems.ProblemType) -> OpenApiResponse:
    return OpenApiResponse(ProblemAnswer, f"{kind.title}.")


def _query_parameter(name: str) -> OpenApiParameter:
    if name == "limit":
        return _query(name, _LIMIT, "The size of a page.")
    kind, text = _QUERY[name]
    enum = [status.value for status in Status] if name == "status" else _CHOICES.get(name)
    return OpenApiParameter(
        name, kind, OpenApiParameter.QUERY, description=text, enum=enum, required=name in _REQUIRED
    )


def _query(name: str, schema: dict[str, Any], text: str) -> OpenApiParameter:
    return OpenApiParameter(name, schema, OpenApiParameter.QUERY, description=text)


def _header(
    name: str, schema: dict[str, Any], *, required: bool, text: str = ""
) -> OpenApiParameter:
    return OpenApiParameter(
        name, schema, OpenApiParameter.HEADER, required=required, description=text
    )


def document(root: str) -> dict[str, Any]:
    """Return the document of the API that is served at this path."""
    return _document(root, conf.settings().API_SESSIONS)


def document_text(root: str) -> bytes:
    """Return the document as JSON text, which is made once: anyone may request it."""
    return _document_text(root, conf.settings().API_SESSIONS)


@functools.cache
def _document_text(root: str, sessions: bool) -> bytes:
    return rendered(_document(root, sessions))


@functools.cache
def _document(root: str, _sessions: bool) -> dict[str, Any]:
    # The schemas of endpoints depend on API_SESSIONS, so it is a part of the key of the cache.
    with patched_settings(dict(_SETTINGS)):
        generator = SchemaGenerator(urlconf="django_durable_tasks.api.urls")
        found: dict[str, Any] = generator.get_schema(request=None, public=True)
    found["servers"] = [{"url": root}]
    return add_webhooks(found)
