"""Single objects: their JSON values, their ETag, and the checks of ``If-Match``."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Collection, Mapping
from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from django_durable_tasks.api import problems
from django_durable_tasks.api.fields import Body
from django_durable_tasks.api.json_body import rendered


@functools.cache
def fields_of(answer: type[Body]) -> Mapping[str, Any]:
    """Return the bound fields of an answer. They are made once, because making them costs more than
    a row.
    """
    return dict(answer().fields)


def shown_by(answer: type[Body], row: Any, without: Collection[str] = ()) -> dict[str, Any]:
    """Return the fields of an answer, except ``without``, from the attributes of an object."""
    found: dict[str, Any] = {}
    for name, field in fields_of(answer).items():
        if name in without:
            continue
        value = getattr(row, str(field.source))
        found[name] = None if value is None else field.to_representation(value)
    return found


def entity_tag(version: int, body: Mapping[str, Any] | bytes) -> str:
    """Return a strong ETag: the version, for If-Match, and a digest of the answer, for
    If-None-Match.
    """
    digest = hashlib.sha256(rendered(body)).hexdigest()[:12]
    return f'"{version}-{digest}"'


def version_in(tag: str) -> str:
    """Return the version in an ETag; proxies that compress answers add ``W/``."""
    return tag.strip().removeprefix("W/").strip('"').partition("-")[0]


def tagged(request: Request, version: int, body: Mapping[str, Any]) -> Response:
    """Return an object with its ETag, or 304 if the client has it."""
    tag = entity_tag(version, body)
    given = request.headers.get("If-None-Match", "")
    if given == "*" or tag in [part.strip().removeprefix("W/") for part in given.split(",")]:
        return Response(status=304, headers={"ETag": tag})
    return Response(body, headers={"ETag": tag})


def require_version(request: Request, version: int) -> None:
    """Check ``If-Match`` against the present version; raises Problem."""
    given = request.headers.get("If-Match")
    if given is None:
        raise problems.invalid_header(
            "If-Match", "send the ETag of the object.", problems.VERSION_REQUIRED
        )
    tags = [version_in(part) for part in given.split(",")]
    if given.strip() != "*" and str(version) not in tags:
        raise problems.invalid_header(
            "If-Match", "the object has another version now.", problems.STALE_VERSION
        )
