"""Pages of tasks by filters, of which most have no index of their own.

A page reads at most ROWS_EXAMINED rows of the table. If these contain fewer matches than ``limit``,
the page is shorter and has a cursor that continues after the examined rows.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from django.db.models import QuerySet
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request

from django_durable_tasks import conf
from django_durable_tasks.api.fields import read_instant
from django_durable_tasks.api.lists import PAGE_PARAMETERS, Cursor, KeysetPage, around, page_of
from django_durable_tasks.api.problems import invalid_parameter
from django_durable_tasks.engine.tenants.quotas import open_tasks
from django_durable_tasks.models import DEFAULT_TENANT_ID, Task
from django_durable_tasks.rules.states import OPEN, REPLAYABLE, Status
from django_durable_tasks.rules.tasks.identifiers import first_uuid7_of

ROWS_EXAMINED = 10_000
FILTERS = frozenset({"status", "queue", "name", "from", "to"})
PARAMETERS = FILTERS | PAGE_PARAMETERS | {"include"}
_LONGEST = 200
_RANDOM = 80
"""The bits of an id that follow its millisecond."""


def filters_of(request: Request) -> dict[str, Any]:
    """Return the filters of a request as lookups; raises Problem."""
    found: dict[str, Any] = {}
    for name in ("queue", "name"):
        if name in request.query_params:
            found[name] = _text(request, name)
    if "status" in request.query_params:
        found["status"] = _status(request.query_params["status"])
    # Ids sort by creation time, so a range of time is a range of the primary key.
    if "from" in request.query_params:
        found["pk__gte"] = first_uuid7_of(_milliseconds(request, "from"))
    if "to" in request.query_params:
        found["pk__lt"] = first_uuid7_of(_milliseconds(request, "to"))
    return found


def _text(request: Request, name: str) -> str:
    value: str = request.query_params[name]
    if not 0 < len(value) <= _LONGEST:
        raise invalid_parameter(name, f"give 1 to {_LONGEST} characters", "range")
    return value


def _status(text: str) -> str:
    if text not in set(Status):
        raise invalid_parameter("status", f"is not one of {', '.join(Status)}", "choice")
    return text


def _milliseconds(request: Request, name: str) -> int:
    return max(0, int(instant_of(request, name).timestamp() * 1_000))


def instant_of(request: Request, name: str) -> datetime:
    """Return the time in a parameter; raises Problem."""
    try:
        return read_instant(request.query_params[name])
    except ValidationError as refused:
        (detail,) = refused.detail
        raise invalid_parameter(name, str(detail), "format") from None


def tasks_of(tenant_id: int) -> QuerySet[Task]:
    """Return the tasks of one tenant; every query of the API begins with them."""
    found: QuerySet[Task] = Task.objects.using(conf.settings().DATABASE).for_tenant(tenant_id)
    return found


def page_of_tasks(
    tenant_id: int,
    filters: Mapping[str, Any],
    cursor: Cursor | None,
    limit: int,
    without: Collection[str] = (),
) -> KeysetPage:
    """Return the page of tasks that match the filters, the newest first. The columns of ``without``
    are not read.
    """
    rows = tasks_of(tenant_id).filter(**filters).defer(*without)
    read, remaining = _by_index(tenant_id, filters)
    if not remaining:
        return page_of(read.defer(*without), cursor, limit)
    backwards = cursor is not None and cursor.backwards
    last = _last_examined(read, cursor)
    if last is not None:
        rows = rows.filter(**{"pk__lte" if backwards else "pk__gte": last})
    if cursor is not None:
        rows = rows.filter(**{f"pk__{cursor.comparison(falling=True)}": cursor.key})
    found = list(rows.order_by("pk" if backwards else "-pk")[: limit + 1])
    if backwards and last is None and not found:
        return page_of_tasks(tenant_id, filters, None, limit, without)
    page = around(found[:limit], cursor, by="pk", more=len(found) > limit)
    if last is None or len(found) > limit:
        return page
    beyond = Cursor(last, backwards)
    return replace(page, previous=beyond) if backwards else replace(page, following=beyond)


def _by_index(tenant_id: int, filters: Mapping[str, Any]) -> tuple[QuerySet[Task], bool]:
    """Return the rows that an index ordered by id finds, and whether they have to be filtered."""
    ranges = {name: value for name, value in filters.items() if name.startswith("pk__")}
    others = set(filters) - set(ranges)
    if filters.get("status") in REPLAYABLE:
        rows = tasks_of(tenant_id).filter(status=filters["status"])
        return rows.filter(**ranges), others != {"status"}
    if tenant_id != DEFAULT_TENANT_ID and others == {"status"} and filters["status"] in OPEN:
        rows = open_tasks(tenant_id).filter(status=filters["status"])
        return rows.filter(**ranges), False
    if tenant_id != DEFAULT_TENANT_ID:
        return tasks_of(tenant_id).filter(**ranges), bool(others)
    # The primary key is the only index with the rows of the default tenant.
    every: QuerySet[Task] = Task.objects.using(conf.settings().DATABASE)
    return every.filter(**ranges), True


def _last_examined(rows: QuerySet[Task], cursor: Cursor | None) -> uuid.UUID | None:
    """Return the last id that the page may read; None if it may read all rows.

    It contains only the millisecond of a row, because that row may belong to another tenant and
    the client receives the id in its cursor.
    """
    backwards = cursor is not None and cursor.backwards
    if cursor is not None:
        rows = rows.filter(**{f"pk__{cursor.comparison(falling=True)}": cursor.key})
    ids = rows.order_by("pk" if backwards else "-pk").values_list("pk", flat=True)
    found: list[Any] = list(ids[ROWS_EXAMINED - 1 : ROWS_EXAMINED])
    if not found:
        return None
    first_of_millisecond = found[0].int >> _RANDOM << _RANDOM
    return uuid.UUID(int=first_of_millisecond + (2**_RANDOM - 1 if backwards else 0))
