"""The OpenAPI 3.1 document of the API, from the attributes of the endpoints."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any, get_type_hints

from django.conf import settings
from drf_spectacular.extensions import OpenApiAuthenticationExtension, OpenApiSerializerExtension
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.plumbing import ResolvedComponent
from drf_spectacular.settings import patched_settings
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, PolymorphicProxySerializer
from rest_framework import serializers

from django_durable_tasks import conf, ports, registry
from django_durable_tasks.choices import TargetType
from django_durable_tasks.contrib.api import problems
from django_durable_tasks.contrib.api.authentication import TENANT_HEADER
from django_durable_tasks.contrib.api.fields import BUILT_IN, AnyJson, Flag, Integer, Text
from django_durable_tasks.contrib.api.parsing import rendered
from django_durable_tasks.contrib.api.serializers import Answer, Body, list_of
from django_durable_tasks.contrib.api.webhooks import add_webhooks, schema_of

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
# Rows of a page.
DEFAULT_LIMIT, LIMIT_MAX = 50, 200
_LIMIT = {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": DEFAULT_LIMIT}
_TENANT = "Of a session: the slug of the tenant. An API key has one tenant."
_CSRF = "Of a session: the value of the CSRF cookie."
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


@functools.cache
def _or_dry_run(serializer_class: type[Body]) -> Any:
    return PolymorphicProxySerializer(
        component_name=f"{serializer_class.__name__}OrDryRun",
        serializers=[serializer_class, DryRunAnswer],
        resource_type_field_name=None,
    )


class ApiKeyScheme(OpenApiAuthenticationExtension):
    """The API key as a security scheme."""

    target_class = "django_durable_tasks.contrib.api.authentication.ApiKeyAuthentication"
    name = "apiKey"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        """Return the scheme."""
        return {"type": "http", "scheme": "bearer", "bearerFormat": "ddt_live_..."}


class SessionScheme(OpenApiAuthenticationExtension):
    """The session of a staff user as a security scheme."""

    target_class = "django_durable_tasks.contrib.api.authentication.StaffSessionAuthentication"
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
    """Bodies refuse unknown fields, and the type of their ``target_config`` depends on
    ``target_type``.
    """

    target_class = "django_durable_tasks.contrib.api.serializers.Body"
    match_subclasses = True

    def map_serializer(self, auto_schema: Any, direction: str) -> dict[str, Any]:
        """Return the schema of a body or an answer."""
        schema: dict[str, Any] = auto_schema._map_serializer(
            self.target, direction, bypass_extensions=True
        )
        if direction != "request":
            return schema
        schema["additionalProperties"] = False
        if not {"target_type", "target_config"} <= schema["properties"].keys():
            return schema
        name = type(self.target).__name__.removesuffix("Body")
        variants = {
            str(kind): self._variant(auto_schema, name, kind, schema) for kind in TargetType
        }
        return {
            "oneOf": [{"$ref": reference} for reference in variants.values()],
            "discriminator": {"propertyName": "target_type", "mapping": variants},
            "description": schema.get("description", ""),
        }

    def _variant(self, auto_schema: Any, name: str, kind: TargetType, whole: Any) -> str:
        """Return the reference to the schema of the bodies with this type of target."""
        kind_schema = {**whole["properties"]["target_type"], "enum": [str(kind)]}
        required = {*whole.get("required", ()), "target_config"}
        if kind == TargetType.CELERY_TASK:
            kind_schema["default"] = str(kind)
        else:
            kind_schema.pop("default", None)
            required.add("target_type")
        properties = {**whole["properties"], "target_type": kind_schema}
        config = properties["target_config"]
        properties["target_config"] = config | config_schema(kind)
        words = "".join(word.title() for word in kind.split("_"))
        schema = {**whole, "properties": properties, "required": sorted(required)}
        component = ResolvedComponent(
            f"{name}{words}", ResolvedComponent.SCHEMA, schema, object=f"{name}{words}"
        )
        auto_schema.registry.register_on_missing(component)
        return str(component.ref["$ref"])


def config_schema(kind: TargetType) -> dict[str, Any]:
    """Return the schema of a ``target_config``, from the signature of the task that performs it."""
    if kind == TargetType.CELERY_TASK:
        name = {"type": "string", "description": "The name of a durable task."}
        args, kwargs = {"type": "array", "items": {}}, {"type": "object"}
        properties = {"task": name, "args": args, "kwargs": kwargs}
        return _config(properties, ["task"])
    ports.load_tasks()
    registered: Any = registry.find(BUILT_IN[kind])
    parameters = registered.signature.parameters
    hints = get_type_hints(registered.function)
    required = [
        name for name, parameter in parameters.items() if parameter.default is parameter.empty
    ]
    return _config({name: schema_of(hints[name]) for name in parameters}, required)


def _config(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**schema, "required": required} if required else schema


_VERBS = {
    "list": "list",
    "retrieve": "get",
    "create": "create",
    "partial_update": "update",
    "destroy": "delete",
}


class EndpointSchema(AutoSchema):
    """Describes an action by its ``Endpoint``."""

    def is_excluded(self) -> bool:
        """Leave out what has no endpoint."""
        return bool(self.view.endpoint is None)

    @property
    def _is_write(self) -> bool:
        return bool(self.method != "GET")

    def get_operation_id(self) -> str:
        """Return the name of the method in generated clients, such as createTask."""
        view, needs = self.view, self.view.endpoint
        if needs.id:
            return str(needs.id)
        if view.action in _VERBS and not (view.action == "list" and not view.plural):
            name = view.plural if view.action == "list" else view.singular
            return f"{_VERBS[view.action]}{name}"
        path = getattr(getattr(view, view.action), "url_path", "")
        words = "".join(word.title() for word in re.split("[-.]", path))
        return f"{'list' if needs.is_list else 'get'}{view.singular}{words}"

    def get_summary(self) -> str:
        """Return the title of the operation, or the first sentence about the action."""
        described = self.view.endpoint.summary or self.get_description()
        return str(described.replace("\n", " ").partition(". ")[0].rstrip("."))

    def get_tags(self) -> list[str]:
        """Return the first part of the path."""
        segments = [segment for segment in self.path.split("/") if segment not in ("", "api", "v1")]
        return segments[:1] or ["api"]

    def get_request_serializer(self) -> Any:
        """Return the body of a write."""
        return self.view.endpoint.body

    def _is_list_view(self, serializer: Any = None) -> bool:
        return False  # the answer of a list is an object with the page

    def get_filter_backends(self) -> list[Any]:
        """Return none: the endpoint has the filters."""
        return []

    def get_override_parameters(self) -> list[Any]:
        """Return the parameters of the query and the headers."""
        needs = self.view.endpoint
        parameters = [self._filter(name, field) for name, field in (needs.filters or {}).items()]
        if needs.is_list:
            parameters.append(_query("cursor", {"type": "string"}, "Of another page."))
            parameters.append(_query("limit", _LIMIT, "The size of a page."))
        if self._is_write:
            parameters.append(
                _query("dry_run", {"type": "string", "enum": ["0", "1"]}, "1: only ask.")
            )
            parameters.append(_header("Idempotency-Key", _KEY, required=False))
        if self.method == "PATCH":
            parameters.append(
                _header("If-Match", {"type": "string", "minLength": 1}, required=True)
            )
        if self.view.authentication_classes and conf.settings().API_SESSIONS:
            # So that the page to try the API has fields for them.
            parameters.append(
                _header(TENANT_HEADER, {"type": "string"}, required=False, text=_TENANT)
            )
            if self._is_write:
                text = {"type": "string"}
                parameters.append(_header("X-CSRFToken", text, required=False, text=_CSRF))
        return parameters

    def _filter(self, name: str, field: Any) -> OpenApiParameter:
        words = getattr(field, "words", None)
        if words is not None:
            schema = {"type": "array", "items": {"type": "string", "enum": words}, "minItems": 1}
        else:
            schema = self._map_serializer_field(field, "request")
        return OpenApiParameter(
            name,
            schema,
            OpenApiParameter.QUERY,
            description=str(field.help_text or ""),
            required=field.required,
            style="form" if words else None,
            explode=False if words else None,
        )

    def get_response_serializers(self) -> Any:
        """Return the answer and the problems of the method."""
        needs, responses = self.view.endpoint, dict[Any, Any]()
        serializer_class = needs.answer or self.view.answer
        if needs.is_list and not needs.answer:
            serializer_class = list_of(serializer_class)
        serializer_class = OpenApiTypes.OBJECT if serializer_class is Answer else serializer_class
        if needs.media_types:
            responses[200, needs.media_types[0]] = OpenApiTypes.STR
        elif not self._is_write:
            responses[200] = OpenApiResponse(serializer_class, "Found.")
        else:
            responses[200] = OpenApiResponse(_or_dry_run(serializer_class), "Done.")
        for status in needs.statuses or ((201,) if self.view.action == "create" else ()):
            responses[status] = OpenApiResponse(serializer_class, _STATUSES[status])
        kinds = [*_ALWAYS, *(_WITH_KEY if self.view.authentication_classes else ())]
        if self._is_write:
            kinds += _OF_WRITES
        elif needs.has_refusals:
            kinds.append(problems.INVALID)
        for kind in [*kinds, *(_OF_PATCH if self.method == "PATCH" else ())]:
            described = OpenApiResponse(ProblemAnswer, f"{kind.title}.")
            responses.setdefault((kind.status, problems.MEDIA_TYPE), described)
        return responses


_STATUSES = {
    201: "Created.",
    202: "Started; Location is the address of its progress.",
    503: "Nothing starts.",
}


def _query(name: str, schema: dict[str, Any], text: str) -> OpenApiParameter:
    return OpenApiParameter(name, schema, OpenApiParameter.QUERY, description=text)


def _header(
    name: str, schema: dict[str, Any], *, required: bool, text: str = ""
) -> OpenApiParameter:
    return OpenApiParameter(
        name, schema, OpenApiParameter.HEADER, required=required, description=text
    )


@functools.cache
def document_text(root: str, sessions: bool) -> bytes:
    """Return the document of the API that is served at this path as JSON text, which is made once:
    anyone may request it.

    ``sessions``: the value of API_SESSIONS, on which the schemas of endpoints depend.
    """
    with patched_settings(dict(_SETTINGS)):
        generator = SchemaGenerator(urlconf="django_durable_tasks.contrib.api.urls")
        schema: dict[str, Any] = generator.get_schema(request=None, public=True)
    schema["servers"] = [{"url": root}]
    return rendered(add_webhooks(schema))
