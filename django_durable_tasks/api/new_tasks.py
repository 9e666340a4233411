"""Builds the calls of new tasks from validated bodies."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from django_durable_tasks import conf
from django_durable_tasks.api.argument_edits import refuse_masks
from django_durable_tasks.api.authentication import Caller
from django_durable_tasks.api.endpoint import ApiEndpoint
from django_durable_tasks.api.problems import invalid_field
from django_durable_tasks.api.target_mapping import call_of
from django_durable_tasks.engine.tasks.new_task import Call
from django_durable_tasks.engine.tenants.quotas import check_payload
from django_durable_tasks.exceptions import IdempotencyConflict
from django_durable_tasks.models import Tenant
from django_durable_tasks.operations.tasks import EDIT
from django_durable_tasks.rules.target_types import TargetType
from django_durable_tasks.rules.targets.queue_message import TENANT
from django_durable_tasks.rules.tasks.options import CallOptions, call_options
from django_durable_tasks.rules.tenants.api_keys import ApiScope

_OPTIONS = (
    "run_at",
    "idempotency_key",
    "key",
    "queue",
    "priority",
    "max_attempts",
    "timeout",
    "expires_at",
    "depends_on",
)


def new_call(given: Mapping[str, Any], caller: Caller, pointer: str = "#") -> Call:
    """Return the call of a new task. ``pointer`` is the place of its fields. Raises Problem or
    DurableTasksError.
    """
    # First, because the other checks read each value of a body that the quota may refuse.
    check_payload(caller.tenant, arguments_in(given))
    refuse_masks(given["target_config"], f"{pointer}/target_config")
    target = call_of(given["target_type"], given["target_config"], caller.tenant, pointer)
    check_queue(given, caller.tenant, pointer)
    options = {name: given[name] for name in _OPTIONS if name in given}
    options["tenant"] = caller.tenant.pk
    return Call(target.registered, target.args, target.kwargs, call_options(CallOptions(), options))


def arguments_in(given: Mapping[str, Any]) -> list[Any]:
    """Return what the arguments of a body are, before it is validated."""
    config = given["target_config"]
    if given["target_type"] != TargetType.CELERY_TASK:
        return [[], config]
    return [config.get("args", []), config.get("kwargs", {})]


def check_existing(given: Mapping[str, Any], task_id: uuid.UUID, endpoint: ApiEndpoint) -> None:
    """Check a call that found an existing task: ``on_conflict`` may refuse it, and a ``key`` has
    edited the task. Raises Problem or IdempotencyConflict.
    """
    if given["on_conflict"] == "reject":
        raise IdempotencyConflict(f"Task {task_id} has this idempotency key or unique key.")
    if "key" in given:
        endpoint.require_scope(ApiScope.OPERATE)
        endpoint.caller.require_permission(EDIT.permission)


def check_queue(given: Mapping[str, Any], tenant: Tenant, pointer: str = "#") -> None:
    """Raise Problem unless the body names no queue, or one of API_QUEUES for this tenant."""
    name = given.get("queue")
    allowed = [entry.replace(TENANT, tenant.slug) for entry in conf.settings().API_QUEUES]
    if name and not any(fnmatchcase(name, entry) for entry in allowed):
        raise invalid_field(
            f"{pointer}/queue",
            f"{name!r} is no queue that clients of the API may choose. Leave it out, or ask the"
            " operator to allow it.",
            "unknown_queue",
        )
