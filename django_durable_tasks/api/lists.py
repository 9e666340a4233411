"""Pages of lists by keyset: each list is ordered by its primary key, so that the order is unique
and an index serves it.

A cursor contains the last key of a page. It is signed together with the tenant, the address and the
filters, and refused with any others.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlencode

from django.core.exceptions import ValidationError
from django.db.models import Model, QuerySet
from django.utils.crypto import constant_time_compare, salted_hmac
from rest_framework.request import Request
from rest_framework.response import Response

from django_durable_tasks.api.problems import invalid_parameter

DEFAULT_LIMIT, LIMIT_MAX = 50, 200
PAGE_PARAMETERS = frozenset({"limit", "cursor"})
_SALT = "django_durable_tasks.api.cursor"
_SIGNATURE = 16
_PLACE = frozenset({"cursor", "limit"})
M = TypeVar("M", bound=Model)


@dataclass(frozen=True, slots=True)
class KeysetPage:
    """The rows of a page, and the key after which the next page begins; None at the end."""

    rows: Sequence[Any]
    next_key: Any


def limit_of(request: Request) -> int:
    """Return the size of a page; raises Problem."""
    text = request.query_params.get("limit", str(DEFAULT_LIMIT))
    if not (text.isascii() and text.isdecimal()) or not 1 <= int(text[:9]) <= LIMIT_MAX:
        raise invalid_parameter("limit", f"is not a whole number from 1 to {LIMIT_MAX}", "range")
    return int(text)


def cursor_of(request: Request, tenant_id: int, model: type[Model]) -> Any:
    """Return the key after which the page begins; None for the first page. Raises Problem."""
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
    primary: Any = model._meta.pk
    try:
        return primary.to_python(key)
    except ValidationError:
        raise invalid_parameter("cursor", "cannot be read", "bad_cursor") from None


def _signature(request: Request, tenant_id: int, key: str) -> str:
    filters = sorted(
        (name, value) for name, value in request.query_params.items() if name not in _PLACE
    )
    signed = f"1|{tenant_id}|{request.path}|{urlencode(filters)}|{key}"
    return salted_hmac(_SALT, signed, algorithm="sha256").hexdigest()[:_SIGNATURE]


def page_of(rows: QuerySet[M], after: Any, limit: int, *, descending: bool = True) -> KeysetPage:
    """Return the page of a queryset after a key."""
    if after is not None:
        rows = rows.filter(**{"pk__lt" if descending else "pk__gt": after})
    found = list(rows.order_by("-pk" if descending else "pk")[: limit + 1])
    more = len(found) > limit
    return KeysetPage(found[:limit], found[limit - 1].pk if more else None)


def listed(
    request: Request,
    tenant_id: int,
    page: KeysetPage,
    represent: Callable[[Any], Mapping[str, Any]],
) -> Response:
    """Return the answer with this page, and the address of the next one in ``Link``."""
    cursor = None
    if page.next_key is not None:
        key = str(page.next_key)
        content = _signature(request, tenant_id, key) + key
        cursor = base64.urlsafe_b64encode(content.encode()).decode().rstrip("=")
    body = {
        "data": [represent(row) for row in page.rows],
        "next_cursor": cursor,
        "has_more": cursor is not None,
    }
    headers = {}
    if cursor is not None:
        query = {**request.query_params.dict(), "cursor": cursor}
        address = request.build_absolute_uri(f"{request.path}?{urlencode(query)}")
        headers["Link"] = f'<{address}>; rel="next"'
    return Response(body, headers=headers)
