"""Addresses of the API, also if the project includes its URLs within another namespace."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from django.http import HttpRequest
from django.urls import reverse

_NAME = "durable-api"
_namespace: ContextVar[str] = ContextVar("durable_api_namespace", default=_NAME)


def use_namespace_of(request: HttpRequest) -> None:
    """Build the addresses of this request in the namespace in which it was resolved."""
    match = request.resolver_match
    _namespace.set(":".join(match.namespaces) if match and match.namespaces else _NAME)


def address_of(name: str, **parts: Any) -> str:
    """Return the path of an endpoint by its name in ``urls.py``."""
    return reverse(f"{_namespace.get()}:{name}", kwargs=parts)
