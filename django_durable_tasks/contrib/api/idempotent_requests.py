"""Executes a request at most once for each idempotency key, in the transaction of its effect;
and dry runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError, OperationalError, transaction
from django.db.models import QuerySet

from django_durable_tasks import audit
from django_durable_tasks.contrib.api.models import IdempotentRequest
from django_durable_tasks.contrib.api.quotas import tenant_quotas
from django_durable_tasks.encryption import EncryptedValue, StorageLocation, decrypted, encrypted
from django_durable_tasks.exceptions import RequestConflict, RequestInProgress
from django_durable_tasks.models import AuditEntry, Task, Tenant
from django_durable_tasks.states import inserts
from django_durable_tasks.states.guarded_update import watching
from django_durable_tasks.store import tables
from django_durable_tasks.store.connections import TimeLimits
from django_durable_tasks.store.dialects import MYSQL, POSTGRESQL, sql, verb
from django_durable_tasks.store.errors import LOCK_TIMEOUTS, code_of, retry_on_deadlock
from django_durable_tasks.tasks.enqueue import Call, insert_with_answer, planned

# Performs operations and rolls them back.


@contextmanager
def rolled_back() -> Iterator[None]:
    """Roll back what the block writes. ``tasks_transitioned`` is not sent, and no message."""
    with tables.atomic(), watching(preview=True):
        yield
        transaction.set_rollback(True, using=tables.database())


_NOWAIT_OF_MYSQL = 3572
# Clients repeat a request within hours. A day also covers an outage over a night.
KEPT = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class RequestIdentity:
    """Which request a key names: its tenant, method, path, and the digest of its contents."""

    tenant_id: int
    key: str
    operation: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """The answer to a request; ``body`` is a JSON value, or a JSON text as bytes."""

    status_code: int
    body: Any
    headers: Mapping[str, str] = field(default_factory=dict)
    replayed: bool = False


def once(
    identity: RequestIdentity, now: datetime, limits: TimeLimits, act: Callable[[], StoredAnswer]
) -> StoredAnswer:
    """Call ``act`` and store its answer; return the stored answer if there is one.

    The caller has just opened the transaction in which ``act`` writes; it gets these time limits.
    Raises RequestConflict if the key belongs to a request with other contents, and
    RequestInProgress if such a request has not ended within the lock timeout.
    """
    row = _inserted_first(identity, limits)
    if row is None:
        existing = tables.unguarded(IdempotentRequest).filter(
            tenant_id=identity.tenant_id, key=identity.key, operation=identity.operation
        )
        row = existing.first() or _uncommitted(existing, identity)
        if row is not None and row.created_at < now - KEPT:
            tables.unguarded(IdempotentRequest).filter(pk=row.pk).delete()
            row = None
    row = row or _inserted(identity, limits)
    if row is None:
        raise RequestInProgress(f"Idempotency-Key {identity.key!r}: repeat the request.")
    if row.status_code:
        if row.fingerprint != identity.fingerprint:
            raise RequestConflict(
                f"Idempotency-Key {identity.key!r} belongs to a request with other contents. Send"
                " the same request, or another key."
            )
        body = decrypted(row.body, _place(row))
        return StoredAnswer(row.status_code, body, row.headers, replayed=True)
    with audit.collected_entries() as entries:
        answer = act()
    _store(row, answer, entries)
    return answer


@verb
def _store(row: IdempotentRequest, answer: StoredAnswer, entries: Sequence[AuditEntry]) -> None:
    """Store the answer and insert the audit entries."""
    body, headers = _stored(encrypted(answer.body, _place(row))), dict(answer.headers)
    tables.unguarded(IdempotentRequest).filter(pk=row.pk).update(
        status_code=answer.status_code, body=body, headers=headers
    )
    audit.insert_entries(entries)


@_store.on(POSTGRESQL)
def _store_in_one_statement(
    row: IdempotentRequest, answer: StoredAnswer, entries: Sequence[AuditEntry]
) -> None:
    body, headers = _stored(encrypted(answer.body, _place(row))), dict(answer.headers)
    texts = {"body": json.dumps(body), "headers": json.dumps(headers)}
    values = {"id": row.pk, "status_code": answer.status_code, **texts}
    audit.insert_entries(entries, sql("store_answer"), values)


@verb
def _uncommitted(
    queryset: QuerySet[IdempotentRequest], identity: RequestIdentity
) -> IdempotentRequest | None:
    """Return None, or raise RequestInProgress if another transaction has inserted the row."""
    return None


@_uncommitted.on(MYSQL)
def _locked_without_waiting(
    queryset: QuerySet[IdempotentRequest], identity: RequestIdentity
) -> IdempotentRequest | None:
    """Do not wait for the other transaction: the lock timeout is a minute by default."""
    with in_progress(identity):
        return queryset.select_for_update(nowait=True).first()


@verb
def _inserted_first(identity: RequestIdentity, limits: TimeLimits) -> IdempotentRequest | None:
    """Insert the row before it is looked for, because most keys are new."""
    return _inserted(identity, limits)


@_inserted_first.on(MYSQL)
def _inserted_last(identity: RequestIdentity, limits: TimeLimits) -> IdempotentRequest | None:
    """Look for the row first: an insert would wait too long for a concurrent request."""
    return None


@verb
def _inserted(identity: RequestIdentity, limits: TimeLimits) -> IdempotentRequest | None:
    """Insert the row of the key; None if a concurrent request has it."""
    try:
        with in_progress(identity), tables.atomic():
            return tables.unguarded(IdempotentRequest).create(
                tenant_id=identity.tenant_id,
                key=identity.key,
                operation=identity.operation,
                fingerprint=identity.fingerprint,
            )
    except IntegrityError:
        return None


@_inserted.on(POSTGRESQL)
def _inserted_within(identity: RequestIdentity, limits: TimeLimits) -> IdempotentRequest | None:
    """Wait until the transaction of a concurrent request ends, for the lock timeout of this one."""
    with in_progress(identity):
        rows = tables.read(sql("idempotent_request"), {**asdict(identity), **limits.parameters()})
    if not rows:
        return None
    return IdempotentRequest(
        id=rows[0][0], tenant_id=identity.tenant_id, fingerprint=identity.fingerprint
    )


@contextmanager
def in_progress(identity: RequestIdentity) -> Iterator[None]:
    """Turn a lock timeout into RequestInProgress."""
    try:
        yield
    except OperationalError as error:
        if code_of(error) not in LOCK_TIMEOUTS | {_NOWAIT_OF_MYSQL}:
            raise
        raise RequestInProgress(
            f"Idempotency-Key {identity.key!r}: a request with this key is running; repeat yours"
            " in a second."
        ) from error


def _place(row: IdempotentRequest) -> StorageLocation:
    return StorageLocation(row.tenant_id, row._meta.db_table, "body", str(row.pk))


def _stored(body: Any) -> Any:
    return dict(body.envelope) if isinstance(body, EncryptedValue) else body


# Creates the task of a request with its answer and its audit entry in one statement, which is its
# own transaction. PostgreSQL executes it in one round trip instead of five.


def create_with_answer(
    call: Call,
    tenant: Tenant,
    identity: RequestIdentity,
    now: datetime,
    limits: TimeLimits,
    answer_of: Callable[[Task], StoredAnswer],
) -> StoredAnswer | None:
    """Create the task of this call, and store the answer under the key of the request; return it.

    Return None, without a change, if the key is taken, or if the task needs further statements: it
    has keys or dependencies, its tenant has a quota of open tasks, or writes of others belong to
    its transaction. The caller then creates it in a transaction. ``now``: a recent time of the
    database. ``answer_of`` returns the answer, whose body is JSON text, and must not use the
    database. Raises DurableTasksError, and RequestInProgress like ``once``.
    """
    if call.options.depends_on is not None or tenant_quotas(tenant).open_tasks is not None:
        return None
    if not inserts.can_create_with_answer():
        return None
    task = inserts.with_times(planned(call), now)
    if task.has_key:
        return None
    row = inserts.row_at(task, now)
    answer, recorder = answer_of(row), audit.AuditRecorder("task.create")
    recorder.created_task(row)
    request = asdict(identity)
    parameters = {
        **{"request_key" if name == "key" else name: value for name, value in request.items()},
        "lock": limits.parameters()["lock"],
        "status_code": answer.status_code,
        "headers": json.dumps(dict(answer.headers)),
        "body": answer.body.decode(),
        "entries": audit.as_recordset(recorder.entries()),
    }
    with in_progress(identity):
        created = retry_on_deadlock(insert_with_answer)(task, now, parameters)
    return answer if created else None
