"""Checks the arguments, options and keys of a call, and builds the new task."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.db import InterfaceError, OperationalError
from django.utils import timezone

from django_durable_tasks import conf, ports
from django_durable_tasks.engine.db.isolation import is_of_another_database
from django_durable_tasks.exceptions import DurableTasksError, InvalidOption
from django_durable_tasks.models import DEFAULT_TENANT_ID
from django_durable_tasks.models.task_queries import new_task_id
from django_durable_tasks.registry import Registered
from django_durable_tasks.rules.dependencies import Join, OnUpstreamFailure
from django_durable_tasks.rules.limits.options import key_of
from django_durable_tasks.rules.tasks.arguments import bind, encode
from django_durable_tasks.rules.tasks.key_templates import formatted
from django_durable_tasks.rules.tasks.new_task import NewTask
from django_durable_tasks.rules.tasks.options import CallOptions, checked_key, checked_name
from django_durable_tasks.rules.tasks.shards import shard_of
from django_durable_tasks.rules.workflows.plan import REFERS


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a durable task, with its arguments and options."""

    task: Registered
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    options: CallOptions = CallOptions()


def planned_task(call: Call, *, refers: bool = False) -> NewTask:
    """Return the task of a workflow step or an occurrence, PENDING; raises DurableTasksError like
    ``new_task``.

    ``refers``: the arguments contain references to results, which are resolved when the task
    starts.
    """
    if not refers:
        return new_task(call)
    # The target checks the arguments when the task starts and the references are resolved.
    bind(call.task.signature, call.task.options.name, call.args, call.kwargs)
    return _new_task(call, call.kwargs, {**call.options.overrides(), REFERS: 1})


def new_task(call: Call) -> NewTask:
    """Check a call and return its task, PENDING. Raises DurableTasksError; writes nothing."""
    return _new_task(call, prepared_kwargs(call), call.options.overrides())


def prepared_kwargs(call: Call) -> Mapping[str, Any]:
    """Return the keyword arguments of a call as its target stores them; raises
    DurableTasksError.
    """
    bind(call.task.signature, call.task.options.name, call.args, call.kwargs)
    prepared = call.task.target.prepared
    return call.kwargs if prepared is None else prepared(call.kwargs)


def _new_task(call: Call, kwargs: Mapping[str, Any], options: Mapping[str, Any]) -> NewTask:
    task, given, settings = call.task.options, call.options, conf.settings()
    payload = encode(
        task.name,
        call.args,
        kwargs,
        max_bytes=settings.PAYLOAD_MAX_BYTES,
        max_depth=settings.JSON_MAX_DEPTH,
    )
    check_options(given, settings)
    queue = ports.queue_of(task.name, given.queue or task.queue, call.args, call.kwargs)
    task_id = given.task_id or new_task_id()
    return NewTask(
        id=task_id,
        args=payload.args,
        kwargs=payload.kwargs,
        shard_key=shard_of(task_id),
        limit_key=limit_key(call),
        tenant_id=_tenant_id(given.tenant),
        name=task.name,
        queue=checked_name("queue", queue),
        priority=task.priority if given.priority is None else given.priority,
        max_attempts=given.max_attempts or task.max_attempts,
        max_crashes=given.max_crashes or task.max_crashes,
        on_orphan=str(given.on_orphan or task.on_orphan),
        weight=given.weight or task.weight,
        options=json.dumps(options) if options else None,
        run_at=given.run_at,
        expires_at=given.expires_at,
        expires_in=task.expires_in if given.expires_in is None else given.expires_in,
        expected_duration=given.expected_duration or task.expected_duration,
        has_given_id=given.task_id is not None,
        idempotency_key=given.idempotency_key,
        key=given.key,
        unique_key=_unique_key(call),
        on_upstream_failure=given.on_upstream_failure or OnUpstreamFailure.SKIP.value,
        target_type=call.task.target.type.value,
        in_batch=task.batch is not None and given.fits_batch and not ports.eager(),
    )


def _tenant_id(tenant: Any) -> int:
    if tenant is None:
        return DEFAULT_TENANT_ID
    found = getattr(tenant, "pk", tenant)
    if isinstance(found, bool) or not isinstance(found, int):
        raise InvalidOption(f"tenant={tenant!r}: give a saved Tenant or its id.")
    return found


def check_options(given: CallOptions, settings: conf.Settings) -> None:
    """Check the options of a call together and with the settings; raises InvalidOption."""
    longest = settings.DELAY_MAX
    if given.lease is not None and given.lease < 2 * settings.HEARTBEAT:
        raise InvalidOption(
            f"lease={given.lease:g}: give at least 2 x HEARTBEAT, {2 * settings.HEARTBEAT:g} s."
        )
    if given.depends_on is None and given.join != Join.ALL:
        raise InvalidOption(f"join={given.join!r} needs depends_on=..., the tasks that are meant.")
    if given.run_at is not None and (given.run_at - timezone.now()).total_seconds() > longest:
        raise InvalidOption(
            f"run_at={given.run_at.isoformat()} is more than {longest:,.0f} s ahead (DELAY_MAX)."
        )
    if (
        given.expires_at is not None
        and given.run_at is not None
        and given.expires_at <= given.run_at
    ):
        raise InvalidOption(
            f"expires_at={given.expires_at.isoformat()} is not after run_at: the task could never"
            " start."
        )


def _unique_key(call: Call) -> str | None:
    unique = call.task.options.unique
    if unique is None:
        return None
    if not isinstance(unique, str):
        return checked_key("unique", _called(unique, call))
    return formatted("unique", unique, call.args, {**call.kwargs, "task": call.task.options.name})


def _called(unique: Callable[..., str], call: Call) -> str:
    try:
        return unique(*call.args, **call.kwargs)
    except (Exception, SystemExit) as error:
        # An error of this connection may need a retry of the whole transaction.
        ours = isinstance(error, OperationalError | InterfaceError)
        if isinstance(error, DurableTasksError) or (ours and not is_of_another_database(error)):
            raise
        name, kind = call.task.options.name, type(error).__name__
        raise InvalidOption(f"unique={unique!r} of {name} raised {kind}: {error}") from error


def limit_key(call: Call) -> str | None:
    """Return the key of the call in a PerKey limit or its endpoint, or None. Raises
    InvalidOption.
    """
    options = call.task.options
    template = key_of(options.rate_limit, options.max_concurrency)
    if template is None:
        endpoint = call.task.target.endpoint
        return endpoint and endpoint(_tenant_id(call.options.tenant), call.kwargs)
    return formatted("PerKey", template, call.args, {**call.kwargs, "task": options.name})
