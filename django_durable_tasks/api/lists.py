"""Pages of lists by keyset: each list is ordered by a unique column, which an index serves.

A cursor contains the last key of a page. It is signed together with the tenant, the address and the
filters, and refused with any others.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
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
_WHOLE = re.compile("[1-9][0-9]{0,2}")
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
    if not _WHOLE.fullmatch(text) or int(text) > LIMIT_MAX:
        raise invalid_parameter("limit", f"is not a whole number from 1 to {LIMIT_MAX}", "range")
    return int(text)


def cursor_of(request: Request, tenant_id: int, model: type[Model], by: str = "") -> Any:
    """Return the key after which the page begins; None for the first page. Raises Problem.

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
        return column.to_python(key)
    except ValidationError:
        raise invalid_parameter("cursor", "cannot be read", "bad_cursor") from None


def _signature(request: Request, tenant_id: int, key: str) -> str:
    filters = sorted(
        (name, value) for name, value in request.query_params.items() if name not in _PLACE
    )
    signed = f"1|{tenant_id}|{request.path}|{urlencode(filters)}|{key}"
    return salted_hmac(_SALT, signed, algorithm="sha256").hexdigest()[:_SIGNATURE]


def page_of(
    rows: QuerySet[M], after: Any, limit: int, *, by: str = "pk", descending: bool | None = None
) -> KeysetPage:
    """Return the page of a queryset after a key.

    ``by`` is a column that is unique in the queryset. A list by primary key begins with the newest
    row, another one with the least value, unless ``descending`` is given.
    """
    falling = by == "pk" if descending is None else descending
    if after is not None:
        rows = rows.filter(**{f"{by}__{'lt' if falling else 'gt'}": after})
    found = list(rows.order_by(f"-{by}" if falling else by)[: limit + 1])
    more = len(found) > limit
    return KeysetPage(found[:limit], getattr(found[limit - 1], by) if more else None)


def _text(key: Any) -> str:
    return key.isoformat() if isinstance(key, datetime) else str(key)


def listed(
    request: Request,
    tenant_id: int,
    page: KeysetPage,
    represent: Callable[[Any], Mapping[str, Any]],
) -> Response:
    """Return the answer with this page, and the address of the next one in ``Link``."""
    cursor = None
    if page.next_key is not None:
        key = _text(page.next_key)
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
