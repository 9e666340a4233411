"""Pages of lists by keyset: each list is ordered by a unique column, which an index serves.

A cursor contains the first or the last key of a page, and the direction in which the list
continues. It is signed together with the tenant, the address and the filters, and refused with any
others.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.utils.crypto import constant_time_compare, salted_hmac
from rest_framework.pagination import BasePagination
from rest_framework.request import Request
from rest_framework.response import Response

from django_durable_tasks.contrib.api.problems import invalid_parameter

DEFAULT_LIMIT, LIMIT_MAX = 50, 200
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

    def comparison(self, *, descending: bool) -> str:
        """Return the lookup that compares the key with the rows of a list in this order."""
        name = "lt" if descending != self.backwards else "gt"
        return f"{name}e" if self.inclusive else name

    def turned(self) -> Cursor:
        """Return the cursor of what lies on the other side of an empty page."""
        return Cursor(self.key, not self.backwards, not self.inclusive)


_MARKS = {(False, False): "a", (False, True): "f", (True, False): "b", (True, True): "u"}
_OF_MARK = {mark: value for value, mark in _MARKS.items()}


def limit_of(request: Request) -> int:
    """Return the size of a page; raises Problem."""
    text = request.query_params.get("limit", str(DEFAULT_LIMIT))
    if not _WHOLE.fullmatch(text) or int(text) > LIMIT_MAX:
        raise invalid_parameter("limit", f"is not a whole number from 1 to {LIMIT_MAX}", "range")
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
        lookup = cursor.comparison(descending=self.descending)
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
            raise invalid_parameter(
                "cursor",
                "belongs to another list, other filters or another tenant; begin again without it",
                "bad_cursor",
            )
        column: Any = model.pk if self.order == "pk" else model.get_field(self.order)
        try:
            return Cursor(column.to_python(key[1:]), *_OF_MARK[key[0]])
        except ValidationError:
            raise invalid_parameter("cursor", "cannot be read", "bad_cursor") from None

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
