"""The section ``webhooks`` of the OpenAPI document: the requests that servers of a tenant receive.

The schemas of messages are generated from the types that the code which builds them is checked
against.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any

from django_durable_tasks.choices import FLAGS, EventType
from django_durable_tasks.contrib.notifications.messages import DATA_OF, EventMessage, Format
from django_durable_tasks.targets.answers import BACKOFF
from django_durable_tasks.targets.http_request import OPTIONAL_HEADERS, SENT_HEADERS

_TAG = "webhooks"
_TYPES: Mapping[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    Mapping: {"type": "object"},
    Any: {},
}
_NEVER_IN_DIGESTS = (EventType.TEST, EventType.DIGEST)
_ANSWERS: Mapping[str, str] = {
    "2XX": "The request was accepted.",
    "3XX": "The request failed. Redirects are not followed, and nothing is retried.",
    "410": "The request failed, and nothing is retried. A notification setting is disabled.",
    "default": (
        f"The request is sent again, by default up to {len(BACKOFF) + 1} times in all."
        " `Retry-After` can postpone the next attempt."
    ),
}


def add_webhooks(
    result: dict[str, Any],
    generator: Any = None,
    request: Any = None,
    public: bool = True,
) -> dict[str, Any]:
    """Return the OpenAPI document with the section.

    The parameters are those of a postprocessing hook of drf-spectacular.
    """
    schemas = {data.__name__: schema_of(data) for data in DATA_OF.values()}
    schemas |= {_message_name(kind): _message(kind) for kind in DATA_OF}
    components = result.setdefault("components", {})
    components["schemas"] = {**components.get("schemas", {}), **schemas}
    callback = {
        "operationId": "webhookCallback",
        "summary": "A callback",
        "description": (
            "The request of a task with the target `HTTP_CALLBACK`. URL, method, headers and body"
            " are those of `target_config`. A body that is a string is sent unchanged."
        ),
        "requestBody": {"content": {"application/json": {"schema": {}}}},
    }
    section = {"callback": _request(callback)}
    for kind in DATA_OF:
        flags = [f"`{flag}`" for flag, kinds in FLAGS.items() if kind in kinds]
        selected = f" with {' or '.join(flags)}" if flags else ""
        notification = {
            "operationId": f"webhook{_message_name(kind)}",
            "summary": f"A message of the type {kind}",
            "description": f"Sent for notification settings of the type `HTTP_WEBHOOK`{selected}.",
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": _reference(_message_name(kind))}},
            },
        }
        section[str(kind)] = _request(notification)
    return {**result, "webhooks": section}


def _request(described: dict[str, Any]) -> dict[str, Any]:
    parameters = [
        {
            "name": name,
            "in": "header",
            "required": name not in OPTIONAL_HEADERS,
            "description": text,
            "schema": {"type": "string"},
        }
        for name, text in SENT_HEADERS.items()
    ]
    answers = {status: {"description": text} for status, text in _ANSWERS.items()}
    return {
        "post": {
            **described,
            "tags": [_TAG],
            "security": [],
            "parameters": parameters,
            "responses": answers,
        }
    }


def _message_name(kind: EventType) -> str:
    return "".join(word.title() for word in kind.split(".")) + "Message"


def _reference(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _message(kind: EventType) -> dict[str, Any]:
    """Return the schema of a whole body."""
    schema = _object(EventMessage)
    members: dict[str, Any] = schema["properties"]
    members |= {"type": {"const": str(kind)}, "data": _reference(DATA_OF[kind].__name__)}
    return schema


def schema_of(hint: Any) -> dict[str, Any]:
    """Return the schema of an annotation. Raises KeyError for one that is not supported."""
    if hint is EventMessage:
        kinds = [kind for kind in DATA_OF if kind not in _NEVER_IN_DIGESTS]
        return {"oneOf": [_reference(_message_name(kind)) for kind in kinds]}
    if typing.is_typeddict(hint):
        return _object(hint)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.NotRequired:
        return schema_of(arguments[0])
    if origin is typing.Annotated:
        return schema_of(arguments[0]) | {
            "format" if isinstance(item, Format) else "description": getattr(item, "name", item)
            for item in hint.__metadata__
        }
    if origin in (typing.Union, UnionType):
        # A parameter that may be None need not be given; one of several types has no schema.
        kinds = [kind for kind in arguments if kind is not NoneType]
        return schema_of(kinds[0]) if len(kinds) == 1 else {}
    if origin in (list, Sequence):
        return {"type": "array", "items": schema_of(arguments[0])}
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return {"type": "string", "enum": [str(item) for item in hint]}
    return _TYPES[origin or hint]


def _object(kind: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return {
        "type": "object",
        "description": kind.__doc__,
        "properties": {name: schema_of(hint) for name, hint in hints.items()},
        "required": [
            name
            for name, hint in hints.items()
            if typing.get_origin(hint) is not typing.NotRequired
        ],
    }
