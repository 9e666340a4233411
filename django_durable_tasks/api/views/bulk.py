"""``/tasks/bulk``, ``/tasks/bulk-cancel`` and ``/tasks/bulk-replay``: operations on many tasks."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, ClassVar

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from django_durable_tasks.api import problems
from django_durable_tasks.api.exception_mapping import problem_of
from django_durable_tasks.api.fields import (
    KEY_LENGTH,
    AnyJson,
    Body,
    BoundedList,
    Flag,
    Instant,
    Integer,
    JsonObject,
    OneOf,
    Text,
)
from django_durable_tasks.api.new_tasks import check_existing, new_call
from django_durable_tasks.api.problems import InvalidPart, Problem
from django_durable_tasks.api.task_fields import NewTaskBody
from django_durable_tasks.api.task_lists import page_of_tasks
from django_durable_tasks.api.views.operations import (
    OperationAnswer,
    operation_address,
    operation_json,
)
from django_durable_tasks.api.writes import Answer, WritingEndpoint
from django_durable_tasks.engine.audit.recorder import recorded
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.db.publish_on_commit import created_so_far
from django_durable_tasks.engine.tasks import enqueue
from django_durable_tasks.engine.tasks.new_task import Call, new_task
from django_durable_tasks.engine.tenants import bulk_operations
from django_durable_tasks.engine.tenants.quotas import (
    charge_open_tasks,
    charge_some_open_tasks,
    quota_of_open_tasks,
)
from django_durable_tasks.exceptions import DurableTasksError, QuotaExceeded
from django_durable_tasks.models import BulkKind
from django_durable_tasks.operations.tasks import CANCEL, REPLAY
from django_durable_tasks.rules.states import OPEN, REPLAYABLE, Status
from django_durable_tasks.rules.tasks.new_task import NewTask
from django_durable_tasks.rules.tenants.api_keys import ApiScope
from django_durable_tasks.rules.tenants.task_filters import TaskFilter

_ITEMS_MAX = 1_000
_SAMPLE = 5
_EXPLAINED = 20
"""How many refused items have all of their unknown fields named, with hints."""


class _Item(JsonObject):
    """A body of POST /tasks, which is validated alone, so that a wrong one refuses no other."""

    def to_internal_value(self, data: Any) -> Any:
        """Return the value."""
        return data


class BulkCreateBody(Body):
    """Tasks to create. The result of each item has the index of the item."""

    items = BoundedList(
        child=_Item(),
        max_length=_ITEMS_MAX,
        allow_empty=False,
        help_text="Up to 1,000 bodies of POST /tasks.",
    )
    atomic = Flag(default=False, help_text="true: if one item is refused, no task is created.")


class BulkCreateAnswer(Body):
    """The result of each item, in the order of the request."""

    created = Integer()
    refused = Integer()
    data = serializers.ListField(child=AnyJson())  # type: ignore[assignment]


class BulkCreateEndpoint(WritingEndpoint):
    """Many tasks at once."""

    reads = ("task",)
    permissions: ClassVar = {"POST": ("add_task",)}
    scopes: ClassVar = {"POST": ApiScope.CREATE}
    bodies: ClassVar = {"POST": BulkCreateBody}
    answers: ClassVar = {"POST": BulkCreateAnswer}

    def post(self, request: Request) -> Response:
        """Create up to 1,000 tasks; an item that is refused does not affect the others."""
        body = self.body(request)
        items = body.get("items")
        self.charge_items(len(items) if isinstance(items, list) else 0)
        given = BulkCreateBody.valid(body)
        return self.write(request, lambda: self._created(given["items"], given["atomic"]))

    def _created(self, items: list[Any], atomic: bool) -> Answer:
        before, results = created_so_far(), dict[int, dict[str, Any]]()
        together: dict[int, NewTask] = {}
        explained, is_full = 0, False
        for index, item in enumerate(items):
            try:
                call, given = self._call(item, briefly=explained >= _EXPLAINED)
                task = new_task(call)
                if enqueue.needs_own_insert(call, task):
                    results[index] = self._created_alone(
                        call, given, charged=not atomic, is_full=is_full
                    )
                else:
                    together[index] = task
            except (Problem, DurableTasksError, serializers.ValidationError) as error:
                results[index] = _refused(index, problem_of(error))
                explained += 1
                # The open tasks are not counted again for each further item.
                is_full = is_full or isinstance(error, QuotaExceeded)
        if not atomic:
            admitted = charge_some_open_tasks(self.caller.tenant, len(together))
            for index in list(together)[admitted:]:
                del together[index]
                results[index] = _refused(
                    index, problem_of(quota_of_open_tasks(self.caller.tenant))
                )
        enqueue.insert_many(list(together.values()))
        results |= {index: _made(task.id) for index, task in together.items()}
        refused = [results[index] for index in sorted(results) if "problem" in results[index]]
        if atomic and refused:
            parts = [part for one in refused for part in one["problem"]["errors"]]
            raise Problem(
                problems.INVALID,
                f"{len(refused)} of {len(items)} items are refused, and no task is created.",
                more={"errors": parts[:_ITEMS_MAX]},
            )
        new = len(together) + created_so_far() - before
        if atomic:
            charge_open_tasks(self.caller.tenant, new)
        data = [results[index] for index in range(len(items))]
        self._record([one["task_id"] for one in data if one["status"] == 201])
        return Answer(200, {"created": new, "refused": len(refused), "data": data})

    def _record(self, ids: list[str]) -> None:
        """Write the audit entry of the new tasks."""
        tenant_id = self.caller.tenant.pk
        with recorded("task.create_many") as entry:
            entry.several("task", [(key, tenant_id) for key in ids], {}, {"created": len(ids)})

    def _call(self, item: Any, *, briefly: bool) -> tuple[Call, Mapping[str, Any]]:
        given: Mapping[str, Any] = NewTaskBody.valid(item, briefly=briefly)
        return new_call(given, self.caller), given

    def _created_alone(
        self, call: Call, given: Mapping[str, Any], *, charged: bool, is_full: bool
    ) -> dict[str, Any]:
        before = created_so_far()
        with tables.atomic():
            key = enqueue.submit(call)
            is_new = created_so_far() > before
            if is_new and is_full:
                raise quota_of_open_tasks(self.caller.tenant)
            if is_new and charged:
                charge_open_tasks(self.caller.tenant, 1)
            if not is_new:
                check_existing(given, key, self)
        return _made(key, 201 if is_new else 200)


def _made(task_id: Any, status: int = 201) -> dict[str, Any]:
    return {"status": status, "task_id": str(task_id)}


def _refused(index: int, problem: Problem) -> dict[str, Any]:
    """Return the result of a refused item; its places begin with the place of the item."""
    parts = problem.parts or (InvalidPart("#", problem.detail),)
    errors = [
        {**part.as_json(), part.place: f"#/items/{index}{part.name.removeprefix('#')}"}
        for part in parts
    ]
    content = {"code": problem.kind.code, "detail": problem.detail, "errors": errors}
    return {"status": problem.kind.status, "problem": content}


class BulkFilterBody(Body):
    """Which tasks, as in the list of tasks, and why."""

    queue = Text(required=False, max_length=KEY_LENGTH)
    name = Text(required=False, max_length=KEY_LENGTH)
    created_from = Instant(required=False, help_text="Created at or after this time.")
    created_to = Instant(required=False, help_text="Created before this time.")
    reason = Text(required=False, allow_blank=True, max_length=500)


class BulkCancelBody(BulkFilterBody):
    """Which open tasks to cancel; without a filter all."""

    status = OneOf(choices=sorted(OPEN), required=False)


class BulkReplayBody(BulkFilterBody):
    """Which ended tasks to replay; without a status the FAILED ones."""

    status = OneOf(choices=sorted(REPLAYABLE), default=Status.FAILED.value)


class _BulkOperationEndpoint(WritingEndpoint):
    """Starts an operation on all tasks that match a filter."""

    reads = ("task", "bulkoperation")
    kind: ClassVar[BulkKind]
    starts_operation = True
    scopes: ClassVar = {"POST": ApiScope.OPERATE}
    answers: ClassVar = {"POST": OperationAnswer}

    def post(self, request: Request) -> Response:
        """Start the operation; its address in ``Location`` shows the progress."""
        given = self.bodies["POST"].valid(self.body(request))
        which = TaskFilter(
            status=Status(given["status"]) if "status" in given else None,
            queue=given.get("queue"),
            name=given.get("name"),
            since=given.get("created_from"),
            before=given.get("created_to"),
        )
        caller = self.caller

        def act() -> Answer:
            row = bulk_operations.start(
                caller.tenant, self.kind, which, by=caller.name, reason=given.get("reason", "")
            )
            if self.kind is BulkKind.REPLAY:
                # A cancellation frees the quota, so that it must not be refused by it.
                charge_open_tasks(caller.tenant, 1)
            shown = operation_json(row) | (
                self._sample(which, row.until_id) if self.dry_run else {}
            )
            return Answer(202, shown, {"Location": operation_address(row.pk)})

        return self.write(request, act)

    def _sample(self, which: TaskFilter, until: uuid.UUID) -> dict[str, Any]:
        """Return some of the matching tasks, for a dry run."""
        filters = {
            "status": which.status,
            "status__in": sorted(OPEN) if which.status is None else None,
            "queue": which.queue,
            "name": which.name,
            "pk__gte": which.first_id,
            "pk__lt": until,
        }
        given = {name: value for name, value in filters.items() if value is not None}
        page = page_of_tasks(self.caller.tenant.pk, given, None, _SAMPLE)
        return {"sample": [str(row.pk) for row in page.rows]}


class BulkCancelEndpoint(_BulkOperationEndpoint):
    """Cancels all open tasks that match a filter."""

    permissions: ClassVar = {"POST": (CANCEL.permission,)}
    kind = BulkKind.CANCEL
    bodies: ClassVar = {"POST": BulkCancelBody}


class BulkReplayEndpoint(_BulkOperationEndpoint):
    """Replays all ended tasks that match a filter."""

    permissions: ClassVar = {"POST": (REPLAY.permission,)}
    kind = BulkKind.REPLAY
    bodies: ClassVar = {"POST": BulkReplayBody}
