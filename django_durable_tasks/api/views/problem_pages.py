"""``/problems/{code}``: what a type of problem means; and the answer for unknown addresses."""

from __future__ import annotations

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from django_durable_tasks.api import problems
from django_durable_tasks.api.endpoint import ApiEndpoint
from django_durable_tasks.api.problems import Problem


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
