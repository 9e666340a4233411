"""``/recurring-tasks``: create, list, read and change recurring tasks."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, ClassVar

from django.db import IntegrityError
from rest_framework.request import Request
from rest_framework.response import Response

from django_durable_tasks import conf
from django_durable_tasks.api import problems
from django_durable_tasks.api.addresses import address_of
from django_durable_tasks.api.argument_edits import edited_arguments, refuse_masks
from django_durable_tasks.api.authentication import Caller
from django_durable_tasks.api.lists import PAGE_PARAMETERS, cursor_of, limit_of, listed, page_of
from django_durable_tasks.api.new_tasks import arguments_in, check_queue
from django_durable_tasks.api.objects import entity_tag, require_version, tagged
from django_durable_tasks.api.openapi import list_of
from django_durable_tasks.api.problems import Problem, invalid_parameter
from django_durable_tasks.api.schedule_fields import (
    NewScheduleBody,
    ScheduleAnswer,
    ScheduleEditBody,
    errors_of_timetable,
    options_of,
    schedule_json,
)
from django_durable_tasks.api.target_mapping import TargetCall, call_of
from django_durable_tasks.api.views.object_operations import ObjectAction, Resource
from django_durable_tasks.api.writes import Answer, WritingEndpoint
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.recurring import schedules as engine
from django_durable_tasks.engine.recurring.schedule_cache import agenda_of
from django_durable_tasks.engine.tenants.quotas import charge, check_payload, check_runs_per_day
from django_durable_tasks.models import RecurringTask
from django_durable_tasks.models.recurring_task import RecurringTaskQuerySet
from django_durable_tasks.operations import schedules
from django_durable_tasks.operations.operation import OperationResult
from django_durable_tasks.rules.recurring.declarations import API
from django_durable_tasks.rules.recurring.options import columns
from django_durable_tasks.rules.recurring.policies import RecurringStatus
from django_durable_tasks.rules.tenants.api_keys import ApiScope


def schedules_of(tenant_id: int) -> RecurringTaskQuerySet:
    """Return the recurring tasks of one tenant."""
    found: RecurringTaskQuerySet = RecurringTask.objects.using(conf.settings().DATABASE)
    return found.for_tenant(tenant_id)


def schedule_of(caller: Caller, key: uuid.UUID, *, lock: bool = False) -> RecurringTask:
    """Return a recurring task of the caller's tenant, locked if ``lock``; raises Problem."""
    rows = schedules_of(caller.tenant.pk)
    row = (rows.select_for_update() if lock else rows).filter(pk=key).first()
    if row is None:
        raise Problem(problems.NOT_FOUND, "There is no recurring task with this id.")
    return row


def _address(key: uuid.UUID) -> str:
    return address_of("recurring-task", recurring_task_id=key)


_TIMES = frozenset(
    {"interval_seconds", "cron", "rrule", "at", "timezone", "calendar", "roll", "start_time"}
    | {"end_time", "dst_gap", "dst_overlap"}
)
"""The fields that determine how often a recurring task runs."""


class RecurringTasksEndpoint(WritingEndpoint):
    """All recurring tasks of the tenant, by name."""

    reads = ("recurringtask",)
    permissions: ClassVar = {"POST": ("add_recurringtask",)}
    scopes: ClassVar = {"GET": ApiScope.READ, "POST": ApiScope.SCHEDULES}
    bodies: ClassVar = {"POST": NewScheduleBody}
    answers: ClassVar = {"GET": list_of(ScheduleAnswer), "POST": ScheduleAnswer}
    creates = True
    parameters: ClassVar = {"GET": PAGE_PARAMETERS | {"status"}}

    def get(self, request: Request) -> Response:
        """Return the recurring tasks that match the filter."""
        tenant_id = self.caller.tenant.pk
        rows = schedules_of(tenant_id)
        if "status" in request.query_params:
            status = request.query_params["status"]
            if status not in set(RecurringStatus):
                names = ", ".join(RecurringStatus)
                raise invalid_parameter("status", f"is not one of {names}", "choice")
            rows = rows.filter(status=status)
        after = cursor_of(request, tenant_id, RecurringTask, "name")
        page = page_of(rows, after, limit_of(request), by="name")
        return listed(request, tenant_id, page, lambda row: schedule_json(row, self.caller))

    def post(self, request: Request) -> Response:
        """Create a recurring task, or return the one with the same idempotency key."""
        given: Mapping[str, Any] = NewScheduleBody.valid(self.body(request))
        check_payload(self.caller.tenant, arguments_in(given))
        check_queue(given, self.caller.tenant)
        refuse_masks(given["target_config"])
        target = call_of(given["target_type"], given["target_config"], self.caller.tenant)

        def act() -> Answer:
            with errors_of_timetable(given):
                return self._created(given, target)

        return self.write(request, act)

    def _created(self, given: Mapping[str, Any], target: TargetCall) -> Answer:
        name, tenant_id = given["name"], self.caller.tenant.pk
        options = options_of(given) | {"args": list(target.args), "kwargs": dict(target.kwargs)}
        values = columns(name, options, may_never_fire=given["paused"])
        values |= {"task": target.registered.options.name, "source": API}
        known = given.get("idempotency_key")
        same = known and schedules_of(tenant_id).filter(idempotency_key=known).exists()
        if not same:
            engine.release_name(name, tenant_id)
        try:
            with tables.atomic():
                row = engine.create(name, tenant_id, values, given["paused"])
        except IntegrityError:
            raise Problem(
                problems.CONFLICT,
                f"The tenant has a recurring task with the name {name!r}.",
            ) from None
        if not same:
            check_runs_per_day(self.caller.tenant, agenda_of(row), row.watermark_at)
            charge(self.caller.tenant, "recurring_tasks")
        shown = schedule_json(schedule_of(self.caller, row.pk), self.caller.without_secrets())
        headers = {"Location": _address(row.pk), "ETag": entity_tag(row.revision, shown)}
        return Answer(200 if same else 201, shown, headers)


class RecurringTaskEndpoint(WritingEndpoint):
    """One recurring task."""

    reads = ("recurringtask",)
    permissions: ClassVar = {"PATCH": ("change_recurringtask",)}
    scopes: ClassVar = {"GET": ApiScope.READ, "PATCH": ApiScope.SCHEDULES}
    bodies: ClassVar = {"PATCH": ScheduleEditBody}
    answers: ClassVar = {"GET": ScheduleAnswer, "PATCH": ScheduleAnswer}

    def get(self, request: Request, recurring_task_id: uuid.UUID) -> Response:
        """Return the recurring task."""
        row = schedule_of(self.caller, recurring_task_id)
        return tagged(request, row.revision, schedule_json(row, self.caller))

    def patch(self, request: Request, recurring_task_id: uuid.UUID) -> Response:
        """Change the recurring task; only times after now fire."""
        valid = ScheduleEditBody.valid(self.body(request), partial=True)
        check_queue(valid, self.caller.tenant)
        caller = self.caller.without_secrets()

        def act() -> Answer:
            row = schedule_of(caller, recurring_task_id, lock=True)
            require_version(request, row.revision)
            options = self._options(row, valid)
            with errors_of_timetable(valid):
                RecurringTask.objects.upsert(
                    name=row.name,
                    task=row.task,
                    tenant=caller.tenant,
                    revision=row.revision,
                    **options,
                )
                changed = schedule_of(caller, recurring_task_id)
                if _TIMES & valid.keys():
                    check_runs_per_day(caller.tenant, agenda_of(changed), changed.watermark_at)
            shown = schedule_json(changed, caller)
            return Answer(200, shown, {"ETag": entity_tag(changed.revision, shown)})

        return self.write(
            request,
            act,
            lambda: schedule_json(schedule_of(caller, recurring_task_id), caller),
        )

    def _options(self, row: RecurringTask, given: Mapping[str, Any]) -> dict[str, Any]:
        options = options_of(given)
        if "target_config" not in given:
            return options
        config = given["target_config"]
        return {**options, **edited_arguments(row.task, row, config, self.caller)}


def _created_task(done: OperationResult) -> dict[str, Any]:
    return {"task_id": str(done.value.pk)}


def _steps(done: OperationResult) -> dict[str, Any]:
    return {"counts": dict(done.counts), "message": done.message}


RESOURCE = Resource(
    name="recurring-task",
    reads="recurringtask",
    find=schedule_of,
    show=schedule_json,
    answer=ScheduleAnswer,
    version=lambda row: int(row.revision),
)
_PLAIN = (
    ("pause", schedules.PAUSE),
    ("resume", schedules.RESUME),
    ("snooze", schedules.SNOOZE),
    ("override", schedules.OVERRIDE),
    ("remove-override", schedules.REMOVE_OVERRIDE),
    ("cancel", schedules.CANCEL),
)
ACTIONS = (
    *(
        ObjectAction(
            path=path, scope=ApiScope.SCHEDULES, operations=(operation,), may_change_nothing=True
        )
        for path, operation in _PLAIN
    ),
    ObjectAction(
        path="trigger-now",
        scope=ApiScope.SCHEDULES,
        operations=(schedules.RUN_NOW,),
        result=_created_task,
    ),
    ObjectAction(
        path="backfill",
        scope=ApiScope.SCHEDULES,
        operations=(schedules.BACKFILL,),
        result=_steps,
        may_change_nothing=True,
    ),
)
