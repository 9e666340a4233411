"""Birth: a call becomes a row in the caller's transaction, once, whatever its keys say. Refused here or never."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import InterfaceError, OperationalError, connections, transaction
from django.db.models import Q
from django.utils import timezone

from django_durable_tasks import conf, ports, registry
from django_durable_tasks.exceptions import (
    DurableTasksError,
    IdempotencyConflict,
    InvalidOption,
    TransitionRefused,
    UniqueConflict,
)
from django_durable_tasks.lifecycle import linking, task_requests, transitions
from django_durable_tasks.lifecycle.edges import tally_of
from django_durable_tasks.lifecycle.ringing import may_be_rung, remember_until_commit, ring_after_commit
from django_durable_tasks.models import DEFAULT_TENANT_ID, RequestKind, Task
from django_durable_tasks.models.task import new_task_id
from django_durable_tasks.ports import Ring
from django_durable_tasks.registry import Registered
from django_durable_tasks.rules.arguments import bind, encode
from django_durable_tasks.rules.building import edges_to
from django_durable_tasks.rules.followups import Schedule
from django_durable_tasks.rules.graphs import Join, OnUpstreamFailure, needed, needed_of
from django_durable_tasks.rules.key_templates import formatted
from django_durable_tasks.rules.limits import key_of
from django_durable_tasks.rules.options import CallOptions, call_options, checked_key, checked_name
from django_durable_tasks.rules.shards import shard_of
from django_durable_tasks.rules.states import Status, UniqueOnConflict
from django_durable_tasks.rules.workflows import REFERS

_TRIES = 5
_DEADLOCK = 1213


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a durable task: what, with which arguments, under which options."""

    task: Registered
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    options: CallOptions = CallOptions()


def submit(call: Call) -> uuid.UUID:
    """Create the row of this call, or find the one that its keys mean; return the row's id.

    Without keys this is one INSERT and no other statement. Raises our errors before anything is written.
    """
    if call.options.depends_on is not None:
        return _submit_waiting(call)
    values = _values(call)
    for _ in range(_TRIES - 1):
        try:
            return _settle(call, values)
        except OperationalError as error:
            if not _may_be_repeated(error):
                raise
    return _settle(call, values)


def _may_be_repeated(error: OperationalError) -> bool:
    """MariaDB and MySQL deadlock two inserts of a key that a third row has just let go; nothing was written then."""
    connection = connections[transitions.database()]
    alone = not connection.in_atomic_block and connection.get_autocommit()
    return alone and connection.vendor == "mysql" and error.args[:1] == (_DEADLOCK,)


def _settle(call: Call, values: dict[str, Any]) -> uuid.UUID:
    if call.options.key is not None:
        return _upsert(call, values)
    if _insert(values):
        return _id(values)
    same = _same_call(call, values)
    if same is not None:
        return same
    if values["unique_key"] is not None:
        return _settle_unique(call, values)
    # The row that held the key went in between, or the id is that of another tenant's row.
    if _insert(values):
        return _id(values)
    raise IdempotencyConflict(f"The id or idempotency key of {call.task.options.name} is taken by a foreign row.")


def _submit_waiting(call: Call) -> uuid.UUID:
    """Create a row that waits for others: these are locked first, so that none of them ends unseen."""
    wanted = edges_to(call.options.depends_on)
    values = _values(call, alone=False)
    with transitions.atomic():
        if call.options.key is not None:
            linking.hold_tenant(values["tenant_id"])
        rows = transitions.lock_rows([*wanted, *_holders(values)])
        linking.check_upstreams(wanted.values(), rows, values["tenant_id"])
        join, policy = needed_of(call.options.join, len(wanted)), values["on_upstream_failure"]
        born = [linking.born(edge, _id(values), rows[key], policy) for key, edge in wanted.items()]
        wants = needed(join, tally_of(born))
        status = Status.BLOCKED if wants else Status.PENDING
        task_id = _settle(
            call, values | {"status": status, "wait": None if wants else 0.0, "join_count": join, "unresolved": wants}
        )
        if task_id == values["id"]:
            linking.attach(born, rows)
        elif call.options.key is not None:
            linking.link(task_id, wanted)
    return task_id


def _holders(values: Mapping[str, Any]) -> list[uuid.UUID]:
    """Return the open rows that hold the keys of this call: they are locked in primary-key order with its upstreams."""
    keys = {name: values[name] for name in ("key", "unique_key") if values[name] is not None}
    if not keys:
        return []
    held = Q(*((f"open_{name}", key) for name, key in keys.items()), _connector=Q.OR)
    return list(transitions.tasks().filter(held, tenant_id=values["tenant_id"]).values_list("pk", flat=True))


def schedule(call: Call) -> Task:
    """Create the row as ``submit`` does and return it."""
    row: Task = transitions.tasks().get(pk=submit(call))
    return row


def schedule_many(calls: Sequence[Call]) -> list[uuid.UUID]:
    """Create many rows without keys in one statement a batch; they are published by the next poll."""
    rows = [_values(call, alone=False) for call in calls]
    if any(call.options.depends_on is not None for call in calls):
        raise InvalidOption("schedule_many() takes no depends_on: build a Workflow, or schedule those one by one.")
    if any(values["named"] or values["key"] or values["idempotency_key"] or values["unique_key"] for values in rows):
        raise InvalidOption("schedule_many() takes no id, key, idempotency_key or unique: schedule those one by one.")
    transitions.create_many(rows)
    return [_id(values) for values in rows]


def schedule_followup(followup: Schedule, tenant_id: int) -> uuid.UUID:
    """Create the task that a body returned, in the transaction of its success."""
    options = call_options(CallOptions(tenant=tenant_id), {**followup.options, "run_at": followup.run_at})
    name = getattr(followup.task, "name", followup.task)
    return submit(Call(registry.get(name), tuple(followup.args), followup.kwargs, options))


def _id(values: Mapping[str, uuid.UUID]) -> uuid.UUID:
    return values["id"]


def values_of(call: Call, *, refers: bool = False) -> dict[str, Any]:
    """Return the values of a row that a poll will publish; raises our errors for what cannot run.

    ``refers``: the arguments hold references to results, which are resolved when the body starts.
    """
    values = _values(call, alone=False)
    if refers:
        values["options"] = json.dumps({**json.loads(values["options"] or "{}"), REFERS: 1})
    return values


def _values(call: Call, *, alone: bool = True) -> dict[str, Any]:
    task, given, settings = call.task.options, call.options, conf.settings()
    bind(call.task.signature, task.name, call.args, call.kwargs)
    payload = encode(
        task.name, call.args, call.kwargs, max_bytes=settings.PAYLOAD_MAX_BYTES, max_depth=settings.JSON_MAX_DEPTH
    )
    _check(given, settings)
    task_id, overrides = given.task_id or new_task_id(), given.overrides()
    values = {
        "id": task_id,
        "named": given.task_id is not None,
        "tenant_id": _tenant_id(given.tenant),
        "name": task.name,
        "queue": checked_name("queue", ports.queue_of(task.name, given.queue or task.queue, call.args, call.kwargs)),
        "priority": task.priority if given.priority is None else given.priority,
        "args": payload.args,
        "kwargs": payload.kwargs,
        "options": json.dumps(overrides) if overrides else None,
        "run_at": given.run_at,
        "expires_at": given.expires_at,
        "expires_in": given.expires_in if given.expires_in is not None else task.expires_in,
        "max_attempts": given.max_attempts or task.max_attempts,
        "max_crashes": given.max_crashes or task.max_crashes,
        "on_orphan": str(given.on_orphan or task.on_orphan),
        "expected_duration": given.expected_duration or task.expected_duration,
        "idempotency_key": given.idempotency_key,
        "key": given.key,
        **_keys_and_weight(call),
        "shard_key": shard_of(task_id),
        "join_count": None,
        "on_upstream_failure": given.on_upstream_failure or OnUpstreamFailure.SKIP.value,
        "unresolved": 0,
    }
    fast = alone and may_be_rung(values)
    return values | {
        "status": Status.QUEUED if fast else Status.PENDING,
        "epoch": int(fast),
        "publish_count": int(fast),
        "wait": settings.REPUBLISH_AFTER if fast else 0.0,
    }


def _tenant_id(tenant: Any) -> int:
    if tenant is None:
        return DEFAULT_TENANT_ID
    found = getattr(tenant, "pk", tenant)
    if isinstance(found, bool) or not isinstance(found, int):
        raise InvalidOption(f"tenant={tenant!r}: give a saved Tenant or its id.")
    return found


def _check(given: CallOptions, settings: conf.Settings) -> None:
    longest = settings.DELAY_MAX
    if given.lease is not None and given.lease < 2 * settings.HEARTBEAT:
        raise InvalidOption(f"lease={given.lease:g}: give at least 2 x HEARTBEAT, {2 * settings.HEARTBEAT:g} s.")
    if given.depends_on is None and given.join != Join.ALL:
        raise InvalidOption(f"join={given.join!r} needs depends_on=..., the tasks that are meant.")
    if given.run_at is not None and (given.run_at - timezone.now()).total_seconds() > longest:
        raise InvalidOption(f"run_at={given.run_at.isoformat()} is more than {longest:g} s ahead (DELAY_MAX).")
    if given.expires_at is not None and given.run_at is not None and given.expires_at <= given.run_at:
        raise InvalidOption(
            f"expires_at={given.expires_at.isoformat()} is not after run_at: the task could never start."
        )


def _keys_and_weight(call: Call) -> dict[str, str | int | None]:
    weight = call.options.weight or call.task.options.weight
    return {"unique_key": _unique_key(call), "limit_key": limit_key(call), "weight": weight}


def _unique_key(call: Call) -> str | None:
    unique = call.task.options.unique
    if unique is None:
        return None
    if not isinstance(unique, str):
        return checked_key("unique", _asked(unique, call))
    return formatted("unique", unique, call.args, {**call.kwargs, "task": call.task.options.name})


def _asked(unique: Callable[..., str], call: Call) -> str:
    try:
        return unique(*call.args, **call.kwargs)
    except (DurableTasksError, OperationalError, InterfaceError):
        raise
    except Exception as error:
        name, kind = call.task.options.name, type(error).__name__
        raise InvalidOption(f"unique={unique!r} of {name} raised {kind}: {error}") from error


def limit_key(call: Call) -> str | None:
    """Return under which key of a PerKey limit this call counts, or None; raises InvalidOption."""
    options = call.task.options
    template = key_of(options.rate_limit, options.max_concurrency)
    if template is None:
        return None
    return formatted("PerKey", template, call.args, {**call.kwargs, "task": options.name})


# Birth ------------------------------------------------------------------------------------------------------------


def _insert(values: dict[str, Any]) -> bool:
    if not transitions.create(values):
        return False
    remember_until_commit(values["id"])
    if values["status"] == Status.QUEUED:
        overrides = json.loads(values["options"]) if values["options"] else {}
        ring = Ring(
            task_id=values["id"], epoch=values["epoch"], number=values["publish_count"], name=values["name"],
            queue=values["queue"], priority=values["priority"], timeout=overrides.get("timeout"),
            soft_timeout=overrides.get("soft_timeout"), idempotency_key=values["idempotency_key"],
        )  # fmt: skip
        ring_after_commit([ring])
    return True


# Keys -------------------------------------------------------------------------------------------------------------


def _same_call(call: Call, values: Mapping[str, Any]) -> uuid.UUID | None:
    """Return the row that the first call of this idempotency key (or of this id) made; refuse another payload."""
    if call.options.idempotency_key is not None:
        question, named = (
            {"idempotency_key": values["idempotency_key"]},
            f"idempotency_key={values['idempotency_key']!r}",
        )
    elif call.options.task_id is not None:
        question, named = {"pk": values["id"]}, f"task_id={values['id']}"
    else:
        return None
    row = transitions.tasks().for_tenant(values["tenant_id"]).filter(**question).first()
    if row is None:
        return None
    same = row.args == json.loads(values["args"]) and row.kwargs == json.loads(values["kwargs"])
    if row.name != values["name"] or not same:
        raise IdempotencyConflict(f"{named} belongs to task {row.pk} ({row.name}) with other arguments.")
    return row.id


def _settle_unique(call: Call, values: dict[str, Any]) -> uuid.UUID:
    """Another open task has the unique key: return it, refuse, or replace it, as ``unique_on_conflict`` says."""
    wish = call.task.options.unique_on_conflict
    for _ in range(_TRIES):
        row = task_requests.owner(RequestKind.UNIQUE_KEY, values["tenant_id"], values["unique_key"])
        if row is not None and wish == UniqueOnConflict.RAISE:
            raise UniqueConflict(f"unique={values['unique_key']!r} is held by the open task {row.pk} ({row.status}).")
        if row is not None and wish == UniqueOnConflict.RETURN_EXISTING:
            return row.id
        with transitions.atomic():
            if row is not None:
                this = transitions.tasks().filter(pk=row.pk)
                transitions.cancel(this, "REPLACED")
                transitions.request_cancel(this, "REPLACED")
            if _insert_over(row, RequestKind.UNIQUE_KEY, values):
                return _id(values)
            transaction.set_rollback(True, using=transitions.database())  # the holder is not ended for nothing
    raise UniqueConflict(
        f"unique={values['unique_key']!r} was not acquired after {_TRIES} attempts because of concurrent updates; retry"
        " the call."
    )


def _insert_over(row: Task | None, kind: RequestKind, values: dict[str, Any]) -> bool:
    """Insert a row whose key this row gives up if it runs; False when another key is in the way.

    In a caller's transaction the RUNNING row is not touched, because its ending would wait for the commit: the key is
    passed on after it.
    """
    if row is None:
        return _insert(values)
    name, owner = kind.lower(), transitions.tasks().filter(pk=row.pk)
    if not transitions.callers_transaction():
        transitions.release_key(owner, kind.marker)
        return _insert(values)
    before = row.pk if getattr(row, kind.marker) is None else None
    if before is None and not owner.filter(**{kind.marker: values[name]}).exists():
        return _insert(values)
    if not task_requests.leave_key(kind, values["tenant_id"], values[name], _id(values), before):
        return False
    return _insert(values | {name: None}) and transitions.name_key(_id(values), name, values[name])


def _upsert(call: Call, values: dict[str, Any]) -> uuid.UUID:
    """Update the waiting task of this key, or create it; a running one is left to finish under its old arguments."""
    same = _same_call(call, values)
    if same is not None:
        return same
    for _ in range(_TRIES):
        found = _take_key(call, values) or _same_call(call, values)
        if found is not None:
            return found
    if values["unique_key"] is not None:
        return _settle_unique(call, values)
    raise TransitionRefused(
        f"key={values['key']!r} was not acquired after {_TRIES} attempts because of concurrent updates; retry the call."
    )


def _take_key(call: Call, values: dict[str, Any]) -> uuid.UUID | None:
    """Update the open row of this key or insert the new one; None when its owner changed or another key is taken."""
    with transitions.atomic():
        # By the primary key, as every move locks it: by the key's own index MariaDB would deadlock with them.
        known = task_requests.owner(RequestKind.KEY, values["tenant_id"], values["key"])
        row = None if known is None else transitions.lock_rows([known.pk]).get(known.pk)
        if known is not None and (row is None or row.open_key != known.open_key or not row.is_open):
            return None
        if row is not None and row.name != values["name"]:
            raise TransitionRefused(f"key={values['key']!r} belongs to the open task {row.pk} of {row.name}.")
        if row is not None and row.status != Status.RUNNING:
            return _update(row, call, values)
        if _insert_over(row, RequestKind.KEY, values):
            return _id(values)
        transaction.set_rollback(True, using=transitions.database())  # the running holder keeps its key
    return None


def _update(row: Task, call: Call, values: Mapping[str, Any]) -> uuid.UUID:
    this = transitions.tasks().filter(pk=row.pk)
    transitions.hand_back(this, 0)
    transitions.edit(
        this, args=json.loads(values["args"]), kwargs=json.loads(values["kwargs"]), priority=values["priority"],
        queue=values["queue"], run_at=call.options.run_at or transitions.NOW, expires_at=_expiry(values),
        max_attempts=values["max_attempts"], max_crashes=values["max_crashes"], on_orphan=values["on_orphan"],
        options=json.loads(values["options"]) if values["options"] else None,
        expected_duration=timedelta(seconds=values["expected_duration"]) if values["expected_duration"] else None,
        limit_key=values["limit_key"], weight=values["weight"],
    )  # fmt: skip
    return row.id


def _expiry(values: Mapping[str, Any]) -> Any:
    if values["expires_at"] is not None or values["expires_in"] is None:
        return values["expires_at"]
    return (values["run_at"] or transitions.NOW) + timedelta(seconds=values["expires_in"])
