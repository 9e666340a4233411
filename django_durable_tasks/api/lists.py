"""Objects and lists: JSON values, ETags, ``If-Match``, and pages by keyset."""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import urlencode

from django.core.exceptions import ValidationError
from django.db.models import Model, QuerySet
from django.utils.crypto import constant_time_compare, salted_hmac
from rest_framework.request import Request
from rest_framework.response import Response

from django_durable_tasks.api import problems
from django_durable_tasks.api.fields import Body, rendered
from django_durable_tasks.api.problems import invalid_parameter

# Single objects: their JSON values, their ETag, and the checks of ``If-Match``.


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


# Pages of lists by keyset: each list is ordered by a unique column, which an index serves.
#
# A cursor contains the first or the last key of a page, and the direction in which the list
# continues. It is signed together with the tenant, the address and the filters, and refused with
# any others.


DEFAULT_LIMIT, LIMIT_MAX = 50, 200
PAGE_PARAMETERS = frozenset({"limit", "cursor"})
_SALT = "django_durable_tasks.api.cursor"
_SIGNATURE = 16
_WHOLE = re.compile("[1-9][0-9]{0,2}")
_PLACE = frozenset({"cursor", "limit"})
M = TypeVar("M", bound=Model)


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a page begins: at a key, which it contains if ``inclusive``, in the order of the list
    or ``backwards``.
    """

    key: Any
    backwards: bool = False
    inclusive: bool = False

    @property
    def mark(self) -> str:
        """One character for the direction and whether the key is included."""
        return _MARKS[self.backwards, self.inclusive]

    def comparison(self, *, falling: bool) -> str:
        """Return the lookup that compares the key with the rows of a list in this order."""
        name = "lt" if falling != self.backwards else "gt"
        return f"{name}e" if self.inclusive else name


_MARKS = {(False, False): "a", (False, True): "f", (True, False): "b", (True, True): "u"}
_OF_MARK = {mark: value for value, mark in _MARKS.items()}


@dataclass(frozen=True, slots=True)
class KeysetPage:
    """The rows of a page in the order of the list, and where the pages beside it begin; None at the
    ends of the list.
    """

    rows: Sequence[Any]
    following: Cursor | None = None
    previous: Cursor | None = None


def limit_of(request: Request) -> int:
    """Return the size of a page; raises Problem."""
    text = request.query_params.get("limit", str(DEFAULT_LIMIT))
    if not _WHOLE.fullmatch(text) or int(text) > LIMIT_MAX:
        raise invalid_parameter("limit", f"is not a whole number from 1 to {LIMIT_MAX}", "range")
    return int(text)


def cursor_of(request: Request, tenant_id: int, model: type[Model], by: str = "") -> Cursor | None:
    """Return where the page begins; None for the first page. Raises Problem.

    ``by``: the unique column by which the list is ordered; by default the primary key.
    """
    text = request.query_params.get("cursor")
    if text is None:
        return None
    try:
        content = base64.urlsafe_b64decode(text.encode("ascii") + b"==").decode()
    except (UnicodeError, binascii.Error, ValueError):
        content = ""
    signature, key = content[:_SIGNATURE], content[_SIGNATURE:]
    if not constant_time_compare(signature, _signature(request, tenant_id, key)):
        raise invalid_parameter(
            "cursor",
            "belongs to another list, other filters or another tenant; begin again without it",
            "bad_cursor",
        )
    column: Any = model._meta.get_field(by) if by else model._meta.pk
    try:
        return Cursor(column.to_python(key[1:]), *_OF_MARK[key[0]])
    except ValidationError:
        raise invalid_parameter("cursor", "cannot be read", "bad_cursor") from None


def _signature(request: Request, tenant_id: int, key: str) -> str:
    filters = sorted(
        (name, value) for name, value in request.query_params.items() if name not in _PLACE
    )
    signed = f"2|{tenant_id}|{request.path}|{urlencode(filters)}|{key}"
    return salted_hmac(_SALT, signed, algorithm="sha256").hexdigest()[:_SIGNATURE]


def page_of(
    rows: QuerySet[M],
    cursor: Cursor | None,
    limit: int,
    *,
    by: str = "pk",
    descending: bool | None = None,
) -> KeysetPage:
    """Return the page of a queryset that begins at a cursor.

    ``by`` is a column that is unique in the queryset. A list by primary key begins with the newest
    row, another one with the least value, unless ``descending`` is given. If no row precedes a page
    any more, the page before it is the first page.
    """
    falling = by == "pk" if descending is None else descending
    chosen = rows
    if cursor is not None:
        chosen = rows.filter(**{f"{by}__{cursor.comparison(falling=falling)}": cursor.key})
    backwards = cursor is not None and cursor.backwards
    found = list(chosen.order_by(f"-{by}" if falling != backwards else by)[: limit + 1])
    if backwards and not found:
        return page_of(rows, None, limit, by=by, descending=descending)
    return around(found[:limit], cursor, by=by, more=len(found) > limit)


def around(found: Sequence[Any], cursor: Cursor | None, *, by: str, more: bool) -> KeysetPage:
    """Return the page with these rows, which are in the order in which they were read. ``more``:
    others follow in this direction.
    """
    if cursor is None or not cursor.backwards:
        following = Cursor(getattr(found[-1], by)) if more else None
        if cursor is None:
            return KeysetPage(found, following)
        first = Cursor(getattr(found[0], by), backwards=True) if found else None
        return KeysetPage(found, following, first or _turned(cursor))
    previous = Cursor(getattr(found[-1], by), backwards=True) if more else None
    last = Cursor(getattr(found[0], by)) if found else None
    return KeysetPage(found[::-1], last or _turned(cursor), previous)


def _turned(cursor: Cursor) -> Cursor:
    """Return the cursor of what lies on the other side of an empty page."""
    return Cursor(cursor.key, not cursor.backwards, not cursor.inclusive)


def _text(key: Any) -> str:
    return key.isoformat() if isinstance(key, datetime) else str(key)


def listed(
    request: Request,
    tenant_id: int,
    page: KeysetPage,
    represent: Callable[[Any], Mapping[str, Any]],
) -> Response:
    """Return the answer with this page, and the addresses of the pages beside it in ``Link``."""
    following = _signed(request, tenant_id, page.following)
    previous = _signed(request, tenant_id, page.previous)
    body = {
        "data": [represent(row) for row in page.rows],
        "next_cursor": following,
        "prev_cursor": previous,
        "has_more": following is not None,
    }
    links = []
    for name, cursor in (("next", following), ("prev", previous)):
        if cursor is not None:
            query = {**request.query_params.dict(), "cursor": cursor}
            address = request.build_absolute_uri(f"{request.path}?{urlencode(query)}")
            links.append(f'<{address}>; rel="{name}"')
    return Response(body, headers={"Link": ", ".join(links)} if links else {})


def _signed(request: Request, tenant_id: int, cursor: Cursor | None) -> str | None:
    if cursor is None:
        return None
    key = cursor.mark + _text(cursor.key)
    content = _signature(request, tenant_id, key) + key
    return base64.urlsafe_b64encode(content.encode()).decode().rstrip("=")
