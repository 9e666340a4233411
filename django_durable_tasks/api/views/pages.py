"""The pages of the API: problem types, the OpenAPI document, and a page to try the API."""

from __future__ import annotations

from typing import Any, ClassVar

from django.http import HttpResponse
from django.template.loader import render_to_string
from rest_framework.request import Request
from rest_framework.response import Response

from django_durable_tasks.api import problems
from django_durable_tasks.api.endpoint import ApiEndpoint, address_of
from django_durable_tasks.api.openapi import document_text
from django_durable_tasks.api.problems import Problem

# ``/problems/{code}``: what a type of problem means; and the answer for unknown addresses.


class ProblemEndpoint(ApiEndpoint):
    """A type of problem. It needs no key, because its address is in answers with status 401."""

    authentication_classes = ()

    def get(self, request: Request, code: str) -> Response:
        """Return the status, the title and the remedy."""
        kind = problems.TYPES.get(code)
        if kind is None:
            raise Problem(problems.NOT_FOUND, "There is no such type of problem.")
        return Response(
            {
                "code": kind.code,
                "status": kind.status,
                "title": kind.title,
                "remedy": kind.remedy,
            }
        )


class UnknownEndpoint(ApiEndpoint):
    """Every other address."""

    authentication_classes = ()
    is_hidden = True
    http_method_names = (*ApiEndpoint.http_method_names, "put", "options", "trace")

    @property
    def allowed_methods(self) -> list[str]:
        """No method is allowed."""
        return []

    def http_method_not_allowed(self, request: Any, *args: Any, **kwargs: Any) -> Response:
        """Answer 404 to every method."""
        raise Problem(problems.NOT_FOUND, "There is no such address.")


_HTML = "text/html"


class SchemaEndpoint(ApiEndpoint):
    """The OpenAPI 3.1 document. It contains no data of a tenant and needs no key."""

    authentication_classes = ()

    def get(self, request: Request) -> Response:
        """Return the document."""
        root = address_of("schema").removesuffix("/schema")
        return Response(document_text(root))


class DocsEndpoint(ApiEndpoint):
    """A page on which a user enters a key and sends requests.

    Its scripts are files of ``drf_spectacular_sidecar`` and of this package, so that a strict
    content security policy allows them.
    """

    authentication_classes = ()
    media_types: ClassVar = (_HTML,)

    def get(self, request: Request) -> HttpResponse:
        """Return the page."""
        context = {"schema": address_of("schema")}
        page = render_to_string("django_durable_tasks/api/docs.html", context)
        return HttpResponse(page, content_type=f"{_HTML}; charset=utf-8")
