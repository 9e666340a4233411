"""``/schema``: the OpenAPI document; ``/docs``: a page to try the API."""

from __future__ import annotations

from typing import ClassVar

from django.http import HttpResponse
from django.template.loader import render_to_string
from rest_framework.request import Request
from rest_framework.response import Response

from django_durable_tasks.api.addresses import address_of
from django_durable_tasks.api.endpoint import ApiEndpoint
from django_durable_tasks.api.openapi import document_text

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
