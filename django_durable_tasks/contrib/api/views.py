"""The viewsets that all others are derived from: access, headers, pages, reads, writes, and the
operations of the registry.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Literal
from urllib.parse import urlencode

from django.core.exceptions import ValidationError as ColumnError
from django.core.signals import got_request_exception
from django.db import connections, transaction
from django.db.models import QuerySet, UUIDField
from django.http import HttpRequest
from django.urls import reverse
from django.utils.crypto import constant_time_compare, salted_hmac
from rest_framework.authentication import BaseAuthentication
from rest_framework.decorators import action
from rest_framework.exceptions import NotAuthenticated, ValidationError
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.pagination import BasePagination
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from django_durable_tasks import conf, operations
from django_durable_tasks.audit import acting
from django_durable_tasks.choices import AuditSource
from django_durable_tasks.contrib.api import (
    authentication,
    fields,
    idempotent_requests,
    openapi,
    parsing,
    problems,
    quotas,
)
from django_durable_tasks.contrib.api.access import SCOPE_HELP, ApiScope
from django_durable_tasks.contrib.api.idempotent_requests import RequestIdentity, StoredAnswer
from django_durable_tasks.contrib.api.parsing import JsonParser, JsonRenderer, rendered
from django_durable_tasks.contrib.api.serializers import Answer, Body
from django_durable_tasks.contrib.api.targets import without_secrets
from django_durable_tasks.exceptions import RequestConflict, RequestInProgress
from django_durable_tasks.operations import ArgumentType, Operation
from django_durable_tasks.store import tables
from django_durable_tasks.store.clock import estimated_now
from django_durable_tasks.store.connections import TimeLimits, bound_transaction
from django_durable_tasks.store.errors import retry_on_deadlock
from django_durable_tasks.texts import did_you_mean

# Addresses of the API, also if the project includes its URLs within another namespace.
_NAME = "durable-api"
_namespace: ContextVar[str] = ContextVar("durable_api_namespace", default=_NAME)


def address_of(name: str, **kwargs: Any) -> str:
    """Return the path of a route by its name."""
    return reverse(f"{_namespace.get()}:{name}", kwargs=kwargs)


_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,100}")
_LENGTH = re.compile("[0-9]{1,12}")
_KEY = re.compile(r"[\x20-\x7e]{1,200}")
WRITES = frozenset({"POST", "PATCH", "DELETE"})
# The items of a body that together cost as much processor time as a small request.
_ITEMS_OF_A_REQUEST = 10
# Characters of the column IdempotentRequest.operation.
_LONGEST_OPERATION = 200
# Seconds that the transaction of a write may take in all, for a lock, and without a statement.
LIMITS = TimeLimits(statement=15.0, lock=2.0, idle=15.0)


class JsonNegotiation(BaseContentNegotiation):
    """Every answer is JSON; a client that does not accept it receives 406."""

    def select_parser(self, request: Request, parsers: Any) -> Any:
        """Return the JSON parser, also for ``application/json; charset=utf-8``."""
        content_type = (request.content_type or "").partition(";")[0].strip().lower()
        return next((parser for parser in parsers if parser.media_type == content_type), None)

    def select_renderer(
        self, request: Request, renderers: Any, format_suffix: str | None = None
    ) -> tuple[Any, str]:
        """Return the JSON renderer; raises Problem."""
        accepted = request.headers.get("Accept", "*/*").lower() or "*/*"
        kinds = [media_range.partition(";")[0].strip() for media_range in accepted.split(",")]
        view: Any = request.parser_context["view"]
        fitting = {"*/*", "application/*", "application/json", problems.MEDIA_TYPE}
        fitting |= set(view.endpoint.media_types if view.endpoint else ())
        if not fitting.intersection(kinds) and not getattr(request, "is_failing", False):
            raise problems.Problem(problems.NOT_ACCEPTABLE, "Answers are application/json.")
        return renderers[0], renderers[0].media_type


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """What an action of a viewset needs and answers.

    ``scope`` is required of a key; of a staff user the permission to view the models ``reads`` and,
    for a write, one of ``permissions``. ``operations`` are those of the registry that it performs.
    ``id`` and ``summary`` name it in the OpenAPI document; ``answer`` is None for the answer of
    the viewset, and ``statuses`` are the successful ones beside 200. ``media_types``: what an
    answer that is not JSON is called in ``Accept``. ``is_list``: the answer is a page. ``filters``
    are the fields that read its query parameters. ``has_refusals``: a GET may answer 422.
    """

    id: str = ""
    summary: str = ""
    scope: ApiScope = ApiScope.READ
    reads: tuple[str, ...] = ()
    permissions: tuple[str, ...] = ()
    operations: tuple[Operation, ...] = ()
    body: type[Body] | None = None
    answer: Any = None
    statuses: tuple[int, ...] = ()
    media_types: tuple[str, ...] = ()
    is_list: bool = False
    filters: Mapping[str, Any] | None = None
    has_refusals: bool = False


def endpoint(
    path: str = "",
    *,
    detail: bool = True,
    method: Literal["get", "post"] = "get",
    **options: Any,
) -> Callable[[Any], Any]:
    """Decorate an action; with ``path`` it has a route of its own below the object, or below the
    list without ``detail``.
    """

    def mark(function: Any) -> Any:
        if path:
            name = path.replace(".", "-")
            route = action(detail=detail, methods=[method], url_path=path, url_name=name)
            function = route(function)
        function.endpoint = Endpoint(**options)
        return function

    return mark


# Pages of lists by keyset: each list is ordered by a unique column, which an index serves.
#
# A cursor contains the first or the last key of a page, and the direction in which the list
# continues. It is signed together with the tenant, the address and the filters, and refused with
# any others.


_SALT = "django_durable_tasks.api.cursor"
# Characters of the signature in a cursor.
_SIGNATURE = 16
_WHOLE = re.compile("[1-9][0-9]{0,2}")


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a page begins: at a key, which it contains if ``inclusive``, in the order of the list
    or ``backwards``.
    """

    key: Any
    backwards: bool = False
    inclusive: bool = False

    def turned(self) -> Cursor:
        """Return the cursor of what lies on the other side of an empty page."""
        return Cursor(self.key, not self.backwards, not self.inclusive)


_MARKS = {(False, False): "a", (False, True): "f", (True, False): "b", (True, True): "u"}
_OF_MARK = {mark: value for value, mark in _MARKS.items()}


def limit_of(request: Request) -> int:
    """Return the size of a page; raises Problem."""
    text = request.query_params.get("limit", str(openapi.DEFAULT_LIMIT))
    if not _WHOLE.fullmatch(text) or int(text) > openapi.LIMIT_MAX:
        raise problems.invalid_parameter(
            "limit", f"is not a whole number from 1 to {openapi.LIMIT_MAX}", "range"
        )
    return int(text)


class KeysetPagination(BasePagination):
    """The page of a queryset that begins at a cursor.

    ``order`` is a column that is unique in the queryset. A list by primary key begins with the
    newest row, another one with the least value, unless ``descending`` is given. If no row precedes
    a page any more, the page before it is the first page.
    """

    def __init__(self, tenant_id: int, order: str = "pk", descending: bool | None = None) -> None:
        self.tenant_id, self.order = tenant_id, order
        self.descending = order == "pk" if descending is None else descending
        self.following: Cursor | None = None
        self.previous: Cursor | None = None

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any]:
        """Return the rows of the page; raises Problem."""
        self.request = request
        cursor = self._cursor(queryset.model._meta)
        return list(self.rows_of(queryset, cursor, limit_of(request)))

    def rows_of(self, queryset: QuerySet[Any], cursor: Cursor | None, limit: int) -> Sequence[Any]:
        """Return the rows of the page, and keep where the pages beside it begin."""
        backwards = cursor is not None and cursor.backwards
        rows = list(self.ordered(self.after(queryset, cursor), backwards)[: limit + 1])
        if backwards and not rows:
            return self.rows_of(queryset, None, limit)
        return self.bounded(rows[:limit], cursor, more=len(rows) > limit)

    def after(self, queryset: QuerySet[Any], cursor: Cursor | None) -> QuerySet[Any]:
        """Return the rows behind the cursor."""
        if cursor is None:
            return queryset
        lookup = "lt" if self.descending != cursor.backwards else "gt"
        lookup += "e" if cursor.inclusive else ""
        return queryset.filter(**{f"{self.order}__{lookup}": cursor.key})

    def ordered(self, queryset: QuerySet[Any], backwards: bool) -> QuerySet[Any]:
        """Return the rows in the direction in which they are read."""
        return queryset.order_by(f"{'-' if self.descending != backwards else ''}{self.order}")

    def bounded(self, rows: Sequence[Any], cursor: Cursor | None, *, more: bool) -> Sequence[Any]:
        """Return the rows in the order of the list; they are in the order in which they were read.
        ``more``: others follow in this direction.
        """
        first, last = (
            [getattr(row, self.order) for row in (rows[0], rows[-1])] if rows else (None, None)
        )
        if cursor is None or not cursor.backwards:
            self.following = Cursor(last) if more else None
            if cursor is not None:
                self.previous = Cursor(first, backwards=True) if rows else cursor.turned()
            return rows
        self.previous = Cursor(last, backwards=True) if more else None
        self.following = Cursor(first) if rows else cursor.turned()
        return rows[::-1]

    def get_paginated_response(self, data: Any) -> Response:
        """Return the page, and the addresses of the pages beside it in ``Link``."""
        following, previous = self._signed(self.following), self._signed(self.previous)
        links = []
        for name, cursor in (("next", following), ("prev", previous)):
            if cursor is not None:
                query = {**self.request.query_params.dict(), "cursor": cursor}
                address = f"{self.request.path}?{urlencode(query)}"
                links.append(f'<{self.request.build_absolute_uri(address)}>; rel="{name}"')
        body = {
            "data": data,
            "next_cursor": following,
            "prev_cursor": previous,
            "has_more": following is not None,
        }
        return Response(body, headers={"Link": ", ".join(links)} if links else {})

    def _cursor(self, model: Any) -> Cursor | None:
        """Return where the page begins; None for the first page. Raises Problem."""
        text = self.request.query_params.get("cursor")
        if text is None:
            return None
        try:
            content = base64.urlsafe_b64decode(text.encode("ascii") + b"==").decode()
        except (UnicodeError, binascii.Error, ValueError):
            content = ""
        signature, key = content[:_SIGNATURE], content[_SIGNATURE:]
        if not constant_time_compare(signature, self._signature(key)):
            raise problems.invalid_parameter(
                "cursor",
                "belongs to another list, other filters or another tenant; begin again without it",
                "bad_cursor",
            )
        column: Any = model.pk if self.order == "pk" else model.get_field(self.order)
        try:
            return Cursor(column.to_python(key[1:]), *_OF_MARK[key[0]])
        except ColumnError:
            raise problems.invalid_parameter("cursor", "cannot be read", "bad_cursor") from None

    def _signature(self, key: str) -> str:
        filters = sorted(
            (name, value)
            for name, value in self.request.query_params.items()
            if name not in ("cursor", "limit")
        )
        signed = f"2|{self.tenant_id}|{self.request.path}|{urlencode(filters)}|{key}"
        return salted_hmac(_SALT, signed, algorithm="sha256").hexdigest()[:_SIGNATURE]

    def _signed(self, cursor: Cursor | None) -> str | None:
        if cursor is None:
            return None
        key = cursor.key.isoformat() if isinstance(cursor.key, datetime) else str(cursor.key)
        key = _MARKS[cursor.backwards, cursor.inclusive] + key
        content = self._signature(key) + key
        return base64.urlsafe_b64encode(content.encode()).decode().rstrip("=")


class ApiViewSet(GenericViewSet[Any]):
    """One resource. The settings of the project's own REST framework do not apply to it.

    ``singular`` and ``plural`` are its names in operation ids. ``answer`` shows a row; ``reads``
    are the models that a staff user must be permitted to view. These and the id in addresses are
    by default those of the model of the answer. ``is_shared``: all tenants share it, so that a
    staff user who is limited to tenants is refused. ``order`` is the unique column by which a list
    is ordered, and ``version`` the attribute with the number of an ETag.
    """

    authentication_classes: Sequence[type[BaseAuthentication]] = (
        authentication.ApiKeyAuthentication,
        authentication.StaffSessionAuthentication,
    )
    permission_classes = ()
    throttle_classes = (authentication.TenantThrottle,)
    filter_backends = ()
    parser_classes = (JsonParser,)
    renderer_classes = (JsonRenderer,)
    content_negotiation_class = JsonNegotiation
    pagination_class = None
    metadata_class = None
    versioning_class = None
    schema = openapi.EndpointSchema()
    http_method_names: Sequence[str] = ("get", "post", "patch", "delete", "head")

    singular: ClassVar[str] = ""
    plural: ClassVar[str] = ""
    noun: ClassVar[str] = ""
    answer: ClassVar[type[Answer]] = Answer
    reads: ClassVar[tuple[str, ...]] = ()
    is_shared: ClassVar[bool] = False
    order: ClassVar[str] = "pk"
    lookup_value_converter: str = "int"
    version: ClassVar[str] = "revision"
    rate: quotas.RateDecision | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        """Derive from the model of the answer what a viewset with an answer of its own does not
        define.
        """
        super().__init_subclass__(**options)
        model: Any = cls.answer.Meta.model
        if "answer" not in vars(cls) or model is None:
            return
        cls.singular = vars(cls).get("singular", model.__name__)
        cls.plural = vars(cls).get("plural", f"{cls.singular}s")
        cls.reads = vars(cls).get("reads", (model._meta.label_lower,))
        words = re.sub("(?<!^)(?=[A-Z])", "_", cls.singular).lower()
        cls.lookup_url_kwarg = vars(cls).get("lookup_url_kwarg", f"{words}_id")
        cls.lookup_value_converter = "uuid" if isinstance(model._meta.pk, UUIDField) else "int"

    @classmethod
    def as_view(cls, actions: Any = None, **initkwargs: Any) -> Any:
        """Return the view, outside of ATOMIC_REQUESTS: each write opens its own transaction."""
        view: Any = super().as_view(actions, **initkwargs)
        for alias in connections:
            view = transaction.non_atomic_requests(using=alias)(view)
        return view

    @property
    def endpoint(self) -> Endpoint | None:
        """What the action needs; None if the method is not allowed."""
        function = getattr(self, getattr(self, "action", None) or "", None)
        return getattr(function, "endpoint", None)

    @property
    def caller(self) -> authentication.Caller:
        """Who sends the request; raises NotAuthenticated."""
        user = self.request.user
        if not isinstance(user, authentication.Caller):
            raise NotAuthenticated
        return user

    @property
    def tenant_id(self) -> int:
        """The tenant for which the caller acts; every query of the API is restricted to it."""
        return int(self.caller.tenant.pk)

    @property
    def dry_run(self) -> bool:
        """Whether the request only asks what would change."""
        return self.request.query_params.get("dry_run") == "1"

    # Access, in the order in which a request is checked.

    def initialize_request(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Request:
        """Give the request its id, which the client may choose."""
        match = request.resolver_match
        _namespace.set(":".join(match.namespaces) if match and match.namespaces else _NAME)
        request_id = request.headers.get("X-Request-Id", "")
        self.request_id = request_id if _REQUEST_ID.fullmatch(request_id) else uuid.uuid4().hex
        return super().initialize_request(request, *args, **kwargs)

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Check the key, the rate, access, parameters and the size of the body."""
        self.format_kwarg = None
        negotiated = self.perform_content_negotiation(request)
        request.accepted_renderer, request.accepted_media_type = negotiated
        self.perform_authentication(request)
        if request.method not in self.allowed_methods:
            # Before the parameters, which are those of a method.
            self.http_method_not_allowed(request)
        # A refused request counts too.
        self.check_throttles(request)
        self.check_permissions(request)
        self._check_parameters(request)
        self._check_size(request)

    def check_permissions(self, request: Request) -> None:
        """Check the scope of a key and the permissions of a staff user; raises Problem."""
        needs = self.endpoint
        if not self.authentication_classes or needs is None:
            return
        self.require_scope(needs.scope)
        if self.caller.user is None:
            return
        for model in needs.reads or self.reads:
            label, dot, name = model.rpartition(".")
            self.caller.require_permission(f"{label}{dot}view_{name}")
        if self.is_shared:
            self.caller.require_all_tenants()
        if request.method in WRITES:
            self.caller.require_permission(*self.write_permissions(str(self.action)))

    @classmethod
    def write_permissions(cls, name: str) -> tuple[str, ...]:
        """Return the permissions of which a staff user needs one for this action: those of its
        endpoint or its operations, otherwise Django's.
        """
        needs: Endpoint = getattr(cls, name).endpoint
        permissions = needs.permissions or tuple(
            operation.permission for operation in needs.operations
        )
        label, dot, model = cls.reads[0].rpartition(".")
        return permissions or (f"{label}{dot}{'add' if name == 'create' else 'change'}_{model}",)

    def require_scope(self, scope: ApiScope) -> None:
        """Raise Problem unless the key has this scope."""
        if scope not in self.caller.scopes:
            raise problems.Problem(
                problems.SCOPE_MISSING,
                f"This needs the scope {scope.value!r}: {SCOPE_HELP[scope]}.",
                more={"scope": scope.value},
            )

    def parameters(self) -> set[str]:
        """Return the names of the query parameters of the action."""
        needs = self.endpoint or Endpoint()
        known = set(needs.filters or ())
        if needs.is_list:
            known |= {"limit", "cursor"}
        return known | ({"dry_run"} if self.request.method in WRITES else set())

    def _check_parameters(self, request: Request) -> None:
        known = self.parameters()
        for name, values in request.query_params.lists():
            if name not in known:
                shown = name.encode(errors="backslashreplace").decode()[:100]
                text = f"is no parameter here. {did_you_mean(name, known)}".strip()
                raise problems.invalid_parameter(shown, text, "unknown_parameter")
            if len(values) > 1:
                raise problems.invalid_parameter(name, "is given twice", "duplicate")
            if "\x00" in values[0]:
                raise problems.invalid_parameter(name, "contains U+0000", "nul_character")
        if request.query_params.get("dry_run", "1") not in ("0", "1"):
            raise problems.invalid_parameter("dry_run", "is neither 0 nor 1", "choice")

    def _check_size(self, request: Request) -> None:
        length = request.META.get("CONTENT_LENGTH") or "0"
        if "HTTP_TRANSFER_ENCODING" in request.META or not _LENGTH.fullmatch(length):
            # Otherwise the body would be ignored, and the operation performed without its fields.
            raise problems.invalid_header("Content-Length", "send the length of the body.")
        if int(length) > parsing.BODY_MAX_BYTES:
            raise parsing.too_large()

    def query(self) -> dict[str, Any]:
        """Return the values of the given query parameters of the action; raises Problem."""
        values: dict[str, Any] = {}
        for name, field in ((self.endpoint or Endpoint()).filters or {}).items():
            text = self.request.query_params.get(name)
            if text is None and field.required:
                raise problems.invalid_parameter(
                    name, f"is required: {field.help_text}", "required"
                )
            if text is None:
                continue
            try:
                values[name] = field.run_validation(text)
            except ValidationError as refused:
                (detail,) = refused.detail
                code = str(getattr(detail, "code", "invalid"))
                raise problems.invalid_parameter(name, str(detail), code) from None
        return values

    def body(self) -> dict[str, Any]:
        """Return the JSON object of the request, empty without a body; raises Problem."""
        data = self.request.data
        if not isinstance(data, dict):
            invalid = problems.InvalidPart("#", "is no JSON object", "type")
            raise problems.Problem(problems.INVALID, "The body is no JSON object.", [invalid])
        return data

    def valid(self) -> dict[str, Any]:
        """Return the validated body of the action; raises Problem or ValidationError."""
        needs: Any = self.endpoint
        data: dict[str, Any] = needs.body.valid(self.body())
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

    # Errors, and the headers of every answer.

    def handle_exception(self, exc: Exception) -> Response:
        """Return the problem of an exception; no error is answered in another form."""
        self.request.is_failing = True  # type: ignore[attr-defined]
        problem = problems.problem_of(exc)
        violated = problem.more.get("violated-policies", ())
        quota = next(iter(violated), "") or getattr(exc, "quota", "")
        if quota and not self.dry_run:
            # Recorded as an event; the transaction of the request has been rolled back.
            quotas.refused(self.tenant_id, quota, problem.detail)
        if problem.kind is problems.INTERNAL_ERROR:
            got_request_exception.send(sender=type(self), request=self.request._request)
        headers = dict(problem.headers)
        if problem.kind is problems.UNAUTHENTICATED:
            headers["WWW-Authenticate"] = self.get_authenticate_header(self.request) or "Bearer"
        types = address_of("problem-detail", code="x")[:-1]
        return Response(
            problem.as_json(self.request.path, self.request_id, types),
            status=problem.kind.status,
            headers=headers,
            content_type=problems.MEDIA_TYPE,
        )

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

    # Objects.

    def rows(self) -> QuerySet[Any]:
        """Return the rows of the tenant."""
        model: Any = self.answer.Meta.model
        queryset: QuerySet[Any] = model.objects.using(conf.settings().DATABASE)
        return queryset.filter(tenant_id=self.tenant_id)

    def find(self, *, lock: bool = False) -> Any:
        """Return the object of the address, locked for a change if ``lock``; raises Problem.

        The object of another tenant does not exist for this one.
        """
        rows = tables.locked_for_change(self.rows()) if lock else self.rows()
        row = rows.filter(pk=self.kwargs[self.lookup_url_kwarg or "pk"]).first()
        if row is None:
            noun = self.noun or self.rows().model._meta.verbose_name
            raise problems.Problem(problems.NOT_FOUND, f"There is no {noun} with this id.")
        return row

    def show(self, row: Any, caller: authentication.Caller) -> dict[str, Any]:
        """Return an object as JSON values for this caller."""
        return self.answer.shown(row, plain=caller.reads_secrets)

    def tag_of(self, row: Any, shown: Mapping[str, Any] | bytes) -> str:
        """Return a strong ETag: the version, for If-Match, and a digest of the answer, for
        If-None-Match.
        """
        digest = hashlib.sha256(rendered(shown)).hexdigest()[:12]
        return f'"{self.version_of(row)}-{digest}"'

    def version_of(self, row: Any) -> int:
        """Return the number that each change of the object increases."""
        return int(getattr(row, self.version))

    def tagged(self, row: Any, shown: Mapping[str, Any]) -> Response:
        """Return an object with its ETag, or 304 if the client has it."""
        tag = self.tag_of(row, shown)
        header = self.request.headers.get("If-None-Match", "")
        known = [text.strip().removeprefix("W/") for text in header.split(",")]
        if header == "*" or tag in known:
            return Response(status=304, headers={"ETag": tag})
        return Response(shown, headers={"ETag": tag})

    def require_version(self, row: Any) -> None:
        """Check ``If-Match`` against the present version; raises Problem."""
        header = self.request.headers.get("If-Match")
        if header is None:
            text = "send the ETag of the object."
            raise problems.invalid_header("If-Match", text, problems.VERSION_REQUIRED)
        # Proxies that compress answers add `W/`.
        tags = [
            tag.strip().removeprefix("W/").strip('"').partition("-")[0] for tag in header.split(",")
        ]
        if header.strip() != "*" and str(self.version_of(row)) not in tags:
            text = "the object has another version now."
            raise problems.invalid_header("If-Match", text, problems.STALE_VERSION)

    def page(
        self,
        rows: QuerySet[Any],
        show: Callable[[Any], Any] | None = None,
        paginator: KeysetPagination | None = None,
    ) -> Response:
        """Return a page of these rows, shown by ``show`` or as the objects of the viewset."""
        pages = paginator or KeysetPagination(self.tenant_id, self.order)
        objects, caller = pages.paginate_queryset(rows, self.request, self), self.caller
        represent = show or (lambda row: self.show(row, caller))
        return pages.get_paginated_response([represent(row) for row in objects])

    def whole(self, data: Sequence[Any]) -> Response:
        """Return a list that has one page."""
        return Response({"data": data, "next_cursor": None, "prev_cursor": None, "has_more": False})

    # Writes.

    def changed(self, row: Any, status: int = 200, **headers: str) -> StoredAnswer:
        """Return the answer to a write of this object. It is masked, because it may be stored and
        sent to another key of the tenant.
        """
        shown = self.show(row, self.caller.without_secrets())
        return StoredAnswer(status, shown, {**headers, "ETag": self.tag_of(row, shown)})

    def before(self) -> dict[str, Any]:
        """Return the object of the address as a write shows it, for a dry run."""
        return self.show(self.find(), self.caller.without_secrets())

    def edit_with(
        self, change: Callable[[Any, dict[str, Any]], Any], *, lock: bool = False
    ) -> Response:
        """Call ``change`` with the object of the address and the validated body, if the client has
        the present version; return the changed object. ``lock``: the object is locked before.
        """
        data = self.valid()

        def act() -> StoredAnswer:
            row = self.find(lock=lock)
            self.require_version(row)
            change(row, data)
            return self.changed(self.find())

        return self.write(act, self.before)

    def delete_with(self, operation: Operation) -> Response:
        """Perform the operation, which deletes the object; return it as it was."""

        def act() -> StoredAnswer:
            row = self.find()
            shown = self.show(row, self.caller.without_secrets())
            operation.perform(row, by=self.caller.name, reason="")
            return StoredAnswer(200, shown)

        return self.write(act)

    def write(
        self,
        act: Callable[[], StoredAnswer],
        before: Callable[[], Mapping[str, Any]] = dict,
        at_once: Callable[[RequestIdentity], StoredAnswer | None] | None = None,
    ) -> Response:
        """Call ``act`` in a transaction and return its answer.

        If ``act`` raises, nothing is written, not even the key of the request, so that a corrected
        request may use the same key. ``before`` returns the object that ``act`` changes, for the
        comparison of a dry run. ``at_once`` does the same as ``act`` for a request with an
        Idempotency-Key and stores the answer, in one statement outside of a transaction; if it
        returns None, ``act`` is called.
        """
        caller, address = self.caller, self.request.META.get("REMOTE_ADDR")
        with acting(AuditSource.API, caller.name, address, caller.tenant.pk):
            key = idempotency_key(self.request)
            if self.dry_run:
                # What the write would answer, and the fields that it would change.
                with idempotent_requests.rolled_back():
                    bound_transaction(LIMITS)
                    shown, answer = before(), act()
                body = _plain(answer.body) if isinstance(answer.body, bytes) else answer.body
                after = body if isinstance(body, Mapping) else {}
                changes = {
                    name: {"before": shown[name], "after": after[name]}
                    for name in shown
                    if name in after and shown[name] != after[name]
                }
                preview = {
                    "dry_run": True,
                    "would_answer": answer.status_code,
                    "changes": changes,
                    "would_return": body,
                }
                return _response(StoredAnswer(200, preview))
            if key is None:
                return _response(_in_transaction(act))
            # Secrets are masked. Otherwise a key of the tenant that may not read them could guess
            # one: only the right guess would be answered like the first request.
            query = sorted(self.request.query_params.lists())
            content: list[Any] = [without_secrets(self.request.data), query]
            if "If-Match" in self.request.headers:
                # An edit of another version is another request.
                content.append(self.request.headers["If-Match"])
            text = json.dumps(content, sort_keys=True)
            identity = RequestIdentity(
                tenant_id=caller.tenant.pk,
                key=key,
                operation=operation_of(self.request),
                fingerprint=hashlib.sha256(text.encode()).hexdigest(),
            )
            try:
                done = None if at_once is None else at_once(identity)
                return _response(done or _once(identity, act))
            except RequestConflict as refused:
                raise problems.invalid_header(
                    "Idempotency-Key", str(refused), problems.KEY_REUSED
                ) from None
            except RequestInProgress as running:
                headers = {"Retry-After": "1"}
                raise problems.Problem(
                    problems.IN_PROGRESS, str(running), headers=headers
                ) from running


@retry_on_deadlock
def _in_transaction(act: Callable[[], StoredAnswer]) -> StoredAnswer:
    with tables.atomic():
        bound_transaction(LIMITS)
        return act()


@retry_on_deadlock
def _once(identity: RequestIdentity, act: Callable[[], StoredAnswer]) -> StoredAnswer:
    def plain_act() -> StoredAnswer:
        answer = act()
        return StoredAnswer(answer.status_code, _plain(answer.body), answer.headers)

    with tables.atomic():
        return idempotent_requests.once(identity, estimated_now(), LIMITS, plain_act)


def _plain(body: Any) -> Any:
    """Return the body as it is sent, so that a replayed answer is the same."""
    return json.loads(rendered(body) or b"null")


def _response(answer: StoredAnswer) -> Response:
    headers = dict(answer.headers)
    if answer.replayed:
        headers["Idempotent-Replayed"] = "true"
    return Response(answer.body, status=answer.status_code, headers=headers)


def idempotency_key(request: Request) -> str | None:
    """Return the key of a write, with or without the quotes of a structured field; None without
    the header. Raises Problem.

    A GET that writes an audit entry has no key, because its answer contains secrets, which must not
    be stored.
    """
    header = request.headers.get("Idempotency-Key")
    if header is None or request.method not in WRITES:
        return None
    text = header.strip()
    if len(text) > 1 and text[0] == text[-1] == '"':
        text = text[1:-1]
    if len(header) > openapi.KEY_SENT_MAX or not _KEY.fullmatch(text):
        raise problems.invalid_header(
            "Idempotency-Key", "give 1 to 200 printable ASCII characters."
        )
    return text


def operation_of(request: Request) -> str:
    """Return method and path; the SHA-256 of them if they exceed the column."""
    text = f"{request.method} {request.path}"
    return text if len(text) <= _LONGEST_OPERATION else hashlib.sha256(text.encode()).hexdigest()


class ReadMixin(ApiViewSet):
    """Lists the objects of a viewset, and reads one."""

    @endpoint(is_list=True)
    def list(self, request: Request) -> Response:
        """Return the objects."""
        return self.page(self.rows())

    @endpoint()
    def retrieve(self, request: Request, **ids: Any) -> Response:
        """Return the object."""
        row = self.find()
        return self.tagged(row, self.show(row, self.caller))


# Operations on one object: ``POST <object>/<operation>`` performs an operation of the registry.


# Characters of the columns with reasons.
REASON_MAX = 500
_FIELDS: Mapping[ArgumentType, Any] = {
    ArgumentType.TEXT: fields.Key,
    ArgumentType.REQUEST_ID: fields.Key,
    ArgumentType.INSTANT: fields.Instant,
    ArgumentType.INTEGER: fields.Integer,
    ArgumentType.SECONDS: fields.Seconds,
    ArgumentType.FLAG: fields.Flag,
    ArgumentType.JSON_LIST: fields.JsonList,
    ArgumentType.JSON_OBJECT: fields.JsonObject,
    ArgumentType.TASK_ID: fields.Id,
}


def reason_field(*, required: bool = False) -> fields.Text:
    """Return the field ``reason`` of a body."""
    return fields.Text(
        required=required,
        allow_blank=not required,
        max_length=REASON_MAX,
        help_text=str(operations.REASON_HELP),
    )


def body_of(name: str, operation: Operation, more: Mapping[str, Any] | None = None) -> type[Body]:
    """Return the serializer of a body with ``reason``, the fields of the operation, and ``more``
    fields.
    """
    members: dict[str, Any] = {
        "reason": reason_field(required=operation.reason == operations.Reason.REQUIRED)
    }
    if operation.modes:
        names = [str(mode.name) for mode in operation.modes]
        members["mode"] = fields.OneOf(choices=names, default=names[0])
    for argument in operation.fields:
        options: dict[str, Any] = {
            "required": argument.required and argument.default is None,
            "help_text": str(argument.help or argument.label),
        }
        if argument.choices:
            members[argument.name] = fields.OneOf(choices=dict(argument.choices), **options)
            continue
        if argument.minimum is not None:
            options["min_value"] = argument.minimum
        members[argument.name] = _FIELDS[argument.kind](**options)
    return type(name, (Body,), {**members, **(more or {}), "__doc__": str(operation.help)})


def perform(
    operation: Operation, subject: Any, caller: authentication.Caller, data: Mapping[str, Any]
) -> operations.OperationResult:
    """Perform the operation with the validated fields of a body; raises DurableTasksError, or
    Problem if a staff user lacks its permission.

    A field that the request leaves out gets the default of the registry.
    """
    caller.require_permission(operation.permission)
    values = {
        argument.name: data.get(
            argument.name, False if argument.kind == ArgumentType.FLAG else argument.default
        )
        for argument in operation.fields
    }
    if operation.modes:
        values["mode"] = data.get("mode", operation.modes[0].name)
    return operation.perform(subject, by=caller.name, reason=data.get("reason", ""), **values)


def refused(row: Any, message: str = "") -> problems.Problem:
    """Return the problem of an operation that the status of an object does not allow."""
    status = getattr(row, "status", "")
    detail = f"Its status is {status}, which does not allow this operation." if status else message
    return problems.Problem(
        problems.CONFLICT,
        detail or "The state of the object does not allow this operation.",
        more={"object_status": status} if status else {},
    )


class OperationsMixin(ApiViewSet):
    """Has a route for each operation of the registry on ``targets``, but those that other methods
    perform (``performed``).

    ``operates`` is the scope that they need, unless ``scopes`` has another one; ``paths`` has the
    last part of an address that is not the name of the operation. ``alternatives``: the operations
    that ``chosen`` selects instead of one, by the object and the body. ``more`` fields of bodies
    are read by ``prepared``. An operation that changes nothing is refused unless
    ``may_change_nothing`` is set. ``operation_answer`` has the fields of ``result``.
    """

    targets: ClassVar[tuple[operations.Target, ...]] = ()
    performed: ClassVar[tuple[Operation, ...]] = ()
    operates: ClassVar[ApiScope] = ApiScope.OPERATE
    scopes: ClassVar[Mapping[str, ApiScope]] = {}
    paths: ClassVar[Mapping[str, str]] = {}
    alternatives: ClassVar[Mapping[Operation, tuple[Operation, ...]]] = {}
    more: ClassVar[Mapping[Operation, Mapping[str, Any]]] = {}
    may_change_nothing: ClassVar[bool] = False
    operation_answer: ClassVar[Any] = None

    def chosen(self, operation: Operation, row: Any, data: Mapping[str, Any]) -> Operation:
        """Return the operation that is performed on this object."""
        return operation

    def prepared(self, operation: Operation, row: Any, data: dict[str, Any]) -> Mapping[str, Any]:
        """Check and complete the fields of a body; raises Problem."""
        return data

    def subject(self, operation: Operation, row: Any) -> Any:
        """Return what the operation is applied to."""
        return self.rows().filter(pk=row.pk) if operation.target.is_queryset else row

    def result(self, done: operations.OperationResult) -> dict[str, Any]:
        """Return further fields of the answer."""
        return {}

    def operate(self, operation: Operation) -> Response:
        """Perform the operation and return the object."""
        data = self.valid()

        def act() -> StoredAnswer:
            # Not locked here: the engine locks rows in an order that prevents deadlocks.
            row = self.find()
            chosen = self.chosen(operation, row, data)
            prepared = self.prepared(operation, row, data)
            done = perform(chosen, self.subject(chosen, row), self.caller, prepared)
            if not done.changed and not self.may_change_nothing:
                raise refused(row, str(done.message))
            if chosen.opens_tasks:
                quotas.charge_open_tasks(self.caller.tenant, done.changed)
            changed = self.find()
            shown = self.show(changed, self.caller.without_secrets()) | self.result(done)
            return StoredAnswer(200, shown, {"ETag": self.tag_of(changed, shown)})

        return self.write(act, self.before)


def add_operations(viewset: type[OperationsMixin]) -> None:
    """Add the routes of the operations on the objects of a viewset."""
    for operation in operations.OPERATIONS.values():
        offered = operation.target in viewset.targets and not operation.not_in_api
        if offered and operation not in viewset.performed:
            name = f"operation_{operation.name}"
            setattr(viewset, name, _action(viewset, operation, name))


def _action(viewset: type[OperationsMixin], operation: Operation, name: str) -> Any:
    path = viewset.paths.get(operation.name, operation.name.replace("_", "-"))
    words = "".join(word.title() for word in path.split("-"))

    def post(self: OperationsMixin, request: Request, **ids: Any) -> Response:
        return self.operate(operation)

    post.__name__, post.__doc__ = name, str(operation.help)
    return endpoint(
        path,
        method="post",
        id=f"{words[0].lower()}{words[1:]}{viewset.singular}",
        summary=str(operation.title),
        scope=viewset.scopes.get(operation.name, viewset.operates),
        operations=(operation, *viewset.alternatives.get(operation, ())),
        body=body_of(f"{viewset.singular}{words}Body", operation, viewset.more.get(operation)),
        answer=viewset.operation_answer,
    )(post)
