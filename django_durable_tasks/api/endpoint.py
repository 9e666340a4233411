"""The view that every endpoint is derived from: access, headers and errors."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any, ClassVar

from django.core.signals import got_request_exception
from django.db import connections, transaction
from django.http import HttpRequest
from django.urls import reverse
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import NotAuthenticated
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from django_durable_tasks import conf
from django_durable_tasks.api import authentication, problems
from django_durable_tasks.api.authentication import (
    ApiKeyAuthentication,
    Caller,
    StaffSessionAuthentication,
)
from django_durable_tasks.api.fields import JsonParser, JsonRenderer, too_large
from django_durable_tasks.api.openapi import EndpointSchema
from django_durable_tasks.api.problems import InvalidPart, Problem, problem_of
from django_durable_tasks.did_you_mean import did_you_mean
from django_durable_tasks.operations.operation import Operation
from django_durable_tasks.tenants import quotas
from django_durable_tasks.tenants.values import SCOPE_HELP, ApiScope, RateDecision

# Addresses of the API, also if the project includes its URLs within another namespace.


_NAME = "durable-api"
_namespace: ContextVar[str] = ContextVar("durable_api_namespace", default=_NAME)


def use_namespace_of(request: HttpRequest) -> None:
    """Build the addresses of this request in the namespace in which it was resolved."""
    match = request.resolver_match
    _namespace.set(":".join(match.namespaces) if match and match.namespaces else _NAME)


def address_of(name: str, **parts: Any) -> str:
    """Return the path of an endpoint by its name in ``urls.py``."""
    return reverse(f"{_namespace.get()}:{name}", kwargs=parts)


_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,100}")
_LENGTH = re.compile("[0-9]{1,12}")
WRITES = frozenset({"POST", "PATCH", "PUT", "DELETE"})


class JsonNegotiation(BaseContentNegotiation):
    """Every answer is JSON; a client that does not accept it receives 406."""

    def select_parser(self, request: Request, parsers: Any) -> Any:
        """Return the JSON parser, also for ``application/json; charset=utf-8``."""
        given = (request.content_type or "").partition(";")[0].strip().lower()
        return next((one for one in parsers if one.media_type == given), None)

    def select_renderer(
        self, request: Request, renderers: Any, format_suffix: str | None = None
    ) -> tuple[Any, str]:
        """Return the JSON renderer; raises Problem."""
        accepted = request.headers.get("Accept", "*/*").lower() or "*/*"
        kinds = [part.partition(";")[0].strip() for part in accepted.split(",")]
        view: Any = request.parser_context["view"]
        fitting = {"*/*", "application/*", "application/json", problems.MEDIA_TYPE}
        fitting |= set(view.media_types)
        if not fitting.intersection(kinds) and not getattr(request, "is_failing", False):
            raise Problem(problems.NOT_ACCEPTABLE, "Answers are application/json.")
        return renderers[0], renderers[0].media_type


_ITEMS_OF_A_REQUEST = 10
"""The items of a body that together cost as much processor time as a small request."""


class ApiEndpoint(APIView):
    """One resource. The settings of the project's own REST framework do not apply to it.

    ``scopes``: the scope that each method requires; an endpoint without authentication needs none.
    ``reads``: the models that a staff user must be permitted to view for any method.
    ``permissions``: the permissions of which a staff user needs one for a write.
    ``is_shared``: it shows or changes what all tenants share, so that a staff user who is limited
    to tenants is refused.
    ``bodies`` and ``answers``: the serializers of each method, for the OpenAPI document.
    ``has_refusals``: a GET may answer 422.
    ``operations``: those of the registry that its methods perform.
    ``is_hidden``: the document does not contain it.
    ``media_types``: what an answer that is not JSON is called in ``Accept``.
    ``parameters``: the query parameters of each method beside ``dry_run`` of a write.
    """

    authentication_classes: Sequence[type[BaseAuthentication]] = (
        ApiKeyAuthentication,
        StaffSessionAuthentication,
    )
    permission_classes = ()
    throttle_classes = ()
    parser_classes = (JsonParser,)
    renderer_classes = (JsonRenderer,)
    content_negotiation_class = JsonNegotiation
    metadata_class = None
    versioning_class = None
    scopes: ClassVar[Mapping[str, ApiScope]] = {}
    reads: ClassVar[tuple[str, ...]]
    permissions: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    is_shared: ClassVar[bool] = False
    bodies: ClassVar[Mapping[str, Any]] = {}
    answers: ClassVar[Mapping[str, Any]] = {}
    has_refusals: ClassVar[bool] = False
    operations: ClassVar[tuple[Operation, ...]] = ()
    is_hidden: ClassVar[bool] = False
    schema = EndpointSchema()
    media_types: ClassVar[Sequence[str]] = ()
    parameters: ClassVar[Mapping[str, frozenset[str]]] = {}
    rate: RateDecision | None = None
    http_method_names: Sequence[str] = ("get", "post", "patch", "delete", "head")

    @classmethod
    def as_view(cls, **initkwargs: Any) -> Any:
        """Return the view, outside of ATOMIC_REQUESTS: each write opens its own transaction."""
        view: Any = super().as_view(**initkwargs)
        for alias in connections:
            view = transaction.non_atomic_requests(using=alias)(view)
        return view

    @property
    def caller(self) -> Caller:
        """Who sends the request; raises NotAuthenticated."""
        found = self.request.user
        if not isinstance(found, Caller):
            raise NotAuthenticated
        return found

    @property
    def dry_run(self) -> bool:
        """Whether the request only asks what would change."""
        return self.request.query_params.get("dry_run") == "1"

    def initialize_request(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Request:
        """Give the request its id, which the client may choose."""
        use_namespace_of(request)
        found = super().initialize_request(request, *args, **kwargs)
        given = request.headers.get("X-Request-Id", "")
        self.request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        return found

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Check that the API is open, then access, parameters and the size of the body."""
        if not conf.settings().API:
            raise Problem(problems.NOT_FOUND, problems.NOT_FOUND.title)
        super().initial(request, *args, **kwargs)
        if request.method not in self.allowed_methods:
            # Before the parameters, which are those of a method.
            self.http_method_not_allowed(request)
        if isinstance(request.user, Caller) and request.user.user is None:
            self.rate = request.user.decision or authentication.admit_request(request.user.tenant)
        self._check_access(str(request.method))
        self._check_parameters(request)
        self._check_size(request)

    def _check_access(self, method: str) -> None:
        method = "GET" if method == "HEAD" else method
        if not self.authentication_classes or method not in self.allowed_methods:
            return
        # A method without a scope fails here, so that it cannot become public by mistake.
        self.require_scope(self.scopes[method])
        if self.caller.user is not None:
            self._check_permissions(method)

    def _check_permissions(self, method: str) -> None:
        for model in self.reads:
            label, dot, name = model.rpartition(".")
            self.caller.require_permission(f"{label}{dot}view_{name}")
        if self.is_shared:
            self.caller.require_all_tenants()
        if method != "GET":
            self.caller.require_permission(*self.permissions[method])

    def require_scope(self, scope: ApiScope) -> None:
        """Raise Problem unless the key has this scope."""
        if scope not in self.caller.scopes:
            raise Problem(
                problems.SCOPE_MISSING,
                f"This needs the scope {scope.value!r}: {SCOPE_HELP[scope]}.",
                more={"scope": scope.value},
            )

    def _check_parameters(self, request: Request) -> None:
        method = "GET" if request.method == "HEAD" else str(request.method)
        known = set(self.parameters.get(method, ()))
        if method in WRITES:
            known.add("dry_run")
        for name, values in request.query_params.lists():
            if name not in known:
                hint = did_you_mean(name, known)
                shown = name.encode(errors="backslashreplace").decode()[:100]
                text = f"is no parameter here. {hint}".strip()
                raise problems.invalid_parameter(shown, text, "unknown_parameter")
            if len(values) > 1:
                raise problems.invalid_parameter(name, "is given twice", "duplicate")
            if "\x00" in values[0]:
                raise problems.invalid_parameter(name, "contains U+0000", "nul_character")
        if request.query_params.get("dry_run", "1") not in ("0", "1"):
            raise problems.invalid_parameter("dry_run", "is neither 0 nor 1", "choice")

    def _check_size(self, request: Request) -> None:
        most = conf.settings().API_BODY_MAX_BYTES
        length = request.META.get("CONTENT_LENGTH") or "0"
        if "HTTP_TRANSFER_ENCODING" in request.META or not _LENGTH.fullmatch(length):
            # Otherwise the body would be ignored, and the operation performed without its fields.
            raise problems.invalid_header("Content-Length", "send the length of the body.")
        if int(length) > most:
            raise too_large(most)

    def body(self, request: Request) -> dict[str, Any]:
        """Return the JSON object of the request, empty without a body; raises Problem."""
        data = request.data
        if not isinstance(data, dict):
            part = InvalidPart("#", "is no JSON object", "type")
            raise Problem(problems.INVALID, "The body is no JSON object.", [part])
        return data

    def charge_items(self, number: int) -> None:
        """Count a request with many items as further requests, before the items are read.

        Raises Problem.
        """
        if self.rate is None:
            return
        # A request that costs more than the window is admitted when all of the window is free.
        further = min((number - 1) // _ITEMS_OF_A_REQUEST, self.rate.rate.number - 1)
        if further > 0:
            self.rate = authentication.admit_request(self.caller.tenant, further)

    def handle_exception(self, exc: Exception) -> Response:
        """Return the problem of an exception; no error is answered in another form."""
        self.request.is_failing = True  # type: ignore[attr-defined]
        problem = problem_of(exc)
        self._record_quota(exc, problem)
        if problem.kind is problems.INTERNAL_ERROR:
            got_request_exception.send(sender=type(self), request=self.request._request)
        headers = dict(problem.headers)
        if problem.kind is problems.UNAUTHENTICATED:
            headers["WWW-Authenticate"] = self.get_authenticate_header(self.request) or "Bearer"
        body = problem.as_json(self.request.path, self.request_id, problem_types())
        return Response(
            body,
            status=problem.kind.status,
            headers=headers,
            content_type=problems.MEDIA_TYPE,
        )

    def _record_quota(self, exc: Exception, problem: Problem) -> None:
        """Record a refusal by a quota as an event. Its transaction has been rolled back."""
        violated = problem.more.get("violated-policies", ())
        quota = next(iter(violated), "") or getattr(exc, "quota", "")
        if quota and not self.dry_run:
            quotas.refused(self.caller.tenant.pk, quota, problem.detail)

    def finalize_response(
        self, request: Request, response: Any, *args: Any, **kwargs: Any
    ) -> Response:
        """Add the headers of every answer."""
        if getattr(request, "accepted_renderer", None) is None:
            request.accepted_renderer = JsonRenderer()
            request.accepted_media_type = JsonRenderer.media_type
        finished = super().finalize_response(request, response, *args, **kwargs)
        finished.headers["X-Request-Id"] = self.request_id
        finished.headers["Cache-Control"] = "no-store"
        finished.headers["X-Content-Type-Options"] = "nosniff"
        for name, value in authentication.rate_headers(self.rate).items() if self.rate else ():
            finished.headers.setdefault(name, value)
        return finished


def problem_types() -> str:
    """Return the address below which the types of problems are described."""
    return address_of("problem", code="x")[:-1]
