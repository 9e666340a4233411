"""Audit entries: who acts, what an operation changes, the entry in the same transaction, and
retention.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import uuid
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Any

from django.db.models import Model, Q, TextField
from django.db.models.functions import Cast

from django_durable_tasks import conf, models, registry
from django_durable_tasks.choices import AuditSource
from django_durable_tasks.encryption import EncryptedValue
from django_durable_tasks.masking import MASK, masked, masked_positional
from django_durable_tasks.models.fields import undecrypted
from django_durable_tasks.models.tenants import AuditEntryQuerySet
from django_durable_tasks.states.guarded_update import observing
from django_durable_tasks.store import tables
from django_durable_tasks.store.dialects import POSTGRESQL, recordset, sql, verb

# The comment that a task stores about an operator's action: the action, the user and the reason.


# Characters of ``Task.reason``.
_COMMENT_MAX = 200


def comment(action: str, by: str = "", reason: str = "") -> str:
    """Return ``"CANCELLED by ada: wrong input"``, truncated to the 200 characters of the column
    ``Task.reason``.
    """
    done = " ".join(part for part in (action, f"by {by}" if by else "") if part)
    return ": ".join(part for part in (done, reason) if part)[:_COMMENT_MAX]


def done_by(action: str, by: str, reason: str) -> str:
    """Return the comment, or an empty text if neither the user nor a reason is given."""
    return comment(action, by, reason) if by or reason else ""


# Audit entries as values: the sources of a write, the changed fields, and their bounded size.


IDS_MAX = 1_000
"""The most ids that the entry of a set contains."""
CHANGES_MAX_BYTES = 16_384
"""The largest ``before`` or ``after`` of an entry."""
OBJECT_TYPES = (
    "task",
    "dead letter",
    "workflow run",
    "schedule",
    "queue",
    "limit",
    "calendar",
    "tenant",
    "API key",
    "notification setting",
    "workflow",
    "operation",
    "installation",
)
OMITTED = "(omitted: too large)"
_SHORT = 500


def changed_fields(
    before: Mapping[str, Any], after: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields of both whose values differ; a field may be missing in one of them."""
    names = [
        name
        for name in dict.fromkeys([*before, *after])
        if name not in before or name not in after or before[name] != after[name]
    ]
    return (
        {name: before[name] for name in names if name in before},
        {name: after[name] for name in names if name in after},
    )


def stored_fields(values: Mapping[str, Any], secret_names: str) -> dict[str, Any]:
    """Return JSON values with secrets masked. If they are larger than CHANGES_MAX_BYTES, long ones
    are omitted.
    """
    hidden: dict[str, Any] = masked(json.loads(json.dumps(dict(values), default=str)), secret_names)
    if _size(hidden) <= CHANGES_MAX_BYTES:
        return hidden
    short = {name: value if _size(value) <= _SHORT else OMITTED for name, value in hidden.items()}
    return short if _size(short) <= CHANGES_MAX_BYTES else dict.fromkeys(list(short)[:100], OMITTED)


def _size(value: Any) -> int:
    return len(json.dumps(value))


# Who performs the writes of this context: set by the admin, the API and the commands.


@dataclass(frozen=True, slots=True)
class AuditActor:
    """Who writes, from where and why: the source, the name, the reason and the IP address.

    ``tenant_id``: the tenant that sees the entries about objects that belong to no tenant.
    """

    source: AuditSource = AuditSource.CODE
    by: str = ""
    reason: str = ""
    address: str | None = None
    tenant_id: int | None = None


_CODE = AuditActor()
_actor: ContextVar[AuditActor] = ContextVar("durable_tasks_audit_actor", default=_CODE)


def current_actor() -> AuditActor:
    """Return who performs the writes of this context; a program outside of all entry points."""
    return _actor.get()


@contextmanager
def acting(
    source: AuditSource | None = None,
    by: str = "",
    address: str | None = None,
    tenant_id: int | None = None,
    *,
    reason: str = "",
) -> Iterator[None]:
    """Perform the writes of the block in this name, for this reason, from this source and address.

    Without a source, what is empty is as outside of the block.
    """
    if source is None:
        outer = _actor.get()
        actor = replace(outer, by=by or outer.by, reason=reason or outer.reason)
    else:
        ip: str | None = None
        with suppress(ValueError):  # it may be that of a socket file
            ip = str(ipaddress.ip_address((address or "").partition("%")[0]))
        actor = AuditActor(source, by, reason, ip, tenant_id)
    token = _actor.set(actor)
    try:
        yield
    finally:
        _actor.reset(token)


# The columns of a task that an audit entry shows, with masked arguments.


ENCRYPTED = "(encrypted)"
_TASK_COLUMNS = (
    "status",
    "queue",
    "priority",
    "run_at",
    "expires_at",
    "cancel_requested_at",
    "failures",
    "crashes",
    "reason",
)


def task_values(row: models.Task) -> dict[str, Any]:
    """Return the columns that operations change; secrets are masked."""
    values = {name: getattr(row, name) for name in _TASK_COLUMNS}
    if row.encryption_key is None:
        return values | masked_arguments(row.name, row.args, row.kwargs)
    return values | {name: encrypted_mark(undecrypted(row, name)) for name in ("args", "kwargs")}


def encrypted_mark(value: Any) -> str:
    """Return a text that differs if the value was encrypted again."""
    data = str(value.envelope.get("data")) if isinstance(value, EncryptedValue) else ""
    return f"{ENCRYPTED} {hashlib.sha256(data.encode()).hexdigest()[:8]}".strip()


def masked_arguments(name: str, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return ``args`` and ``kwargs`` of a task with its secrets masked by the names of the
    parameters; all positional values if this process does not know the task.
    """
    task, names = registry.find(name), conf.settings().SECRET_NAMES
    parameters = None if task is None else task.positional_parameters
    return {
        "args": masked_positional(args, parameters, names) if isinstance(args, list) else MASK,
        "kwargs": masked(kwargs, names) if isinstance(kwargs, dict) else MASK,
    }


# Every function that an admin page, the API, a command or a manager calls to change
# rows runs its writes inside ``recorded``. The writers below report to the outermost one: the
# transitions report the tasks they change, the writers of other tables their old and new values. A
# write outside of ``recorded``, such as those of schedulers and workers, is not audited. An
# operation that changes nothing has no entry.


_MANY = 5_000
_ENTRY_COLUMNS = [
    column.attname
    for column in models.AuditEntry._meta.concrete_fields
    if column.name not in ("id", "at")
]
"""The columns of the statement ``audit_entries``."""


def audit_entries() -> AuditEntryQuerySet:
    """Return a queryset of all entries, without the guard against writes."""
    entries: AuditEntryQuerySet = models.AuditEntry.objects.using(tables.database())
    return entries.unguarded()


_collected: ContextVar[list[models.AuditEntry] | None] = ContextVar(
    "durable_tasks_entries", default=None
)


@contextmanager
def collected_entries() -> Iterator[list[models.AuditEntry]]:
    """Collect the entries of operations that end with the transaction of the block.

    The caller passes them to ``insert_entries`` in this transaction. An operation with a savepoint
    inserts its own entry, because the savepoint may be rolled back.
    """
    entries: list[models.AuditEntry] = []
    token = _collected.set(entries)
    try:
        yield entries
    finally:
        _collected.reset(token)


@verb
def insert_entries(
    entries: Sequence[models.AuditEntry],
    update: str | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> None:
    """Insert entries, on PostgreSQL with an UPDATE in the same statement if it is given."""
    if entries:
        audit_entries().bulk_create(entries)


@insert_entries.on(POSTGRESQL)
def _insert_entries_in_one_statement(
    entries: Sequence[models.AuditEntry],
    update: str | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> None:
    before = "" if update is None else f"WITH before_entries AS ({update}) "
    values = {"entries": as_recordset(entries), **(parameters or {})}
    tables.count(f"{before}{sql('audit_entries')}", values)


def as_recordset(entries: Sequence[models.AuditEntry]) -> str:
    """Return entries as the parameter of the statements that insert them."""
    return recordset([{name: getattr(entry, name) for name in _ENTRY_COLUMNS} for entry in entries])


class AuditRecorder:
    """The changes of one operation."""

    def __init__(self, operation: str, *, savepoint: bool = True) -> None:
        self.operation, self.actor = operation, current_actor()
        self._collecting = None if savepoint else _collected.get()
        self._subject: tuple[str, str, int | None] | None = None
        self._before: dict[str, Any] = {}
        self._after: dict[str, Any] = {}
        self._rows: list[tuple[Any, int | None]] = []
        self._rows_type = ""
        self._tasks: dict[uuid.UUID, tuple[int, str]] = {}
        self._first: models.Task | None = None

    def subject(self, object_type: str, object_id: Any, tenant_id: int | None = None) -> None:
        """Set the object of the entry, unless an enclosing operation has set it."""
        self._subject = self._subject or (object_type, str(object_id), tenant_id)

    def changed(
        self,
        object_type: str,
        object_id: Any,
        before: Mapping[str, Any],
        after: Mapping[str, Any],
        tenant_id: int | None = None,
    ) -> None:
        """Record the values of an object before and after a write. Equal values are left out.

        The changes of a further object are left out, because an entry is about one object.
        """
        self.subject(object_type, object_id, tenant_id)
        if self._subject is not None and self._subject[:2] == (object_type, str(object_id)):
            old, new = changed_fields(before, after)
            self._before, self._after = old | self._before, self._after | new

    def several(
        self,
        object_type: str,
        rows: Sequence[tuple[Any, int | None]],
        before: Mapping[str, Any],
        after: Mapping[str, Any],
    ) -> None:
        """Record the same change of several objects, given by their ids and tenants."""
        if self._subject is None and not self._tasks:
            self._rows, self._rows_type = list(rows), object_type
            self._before, self._after = dict(before), dict(after)

    def created_task(self, row: models.Task) -> None:
        """Record a new task."""
        self.changed("task", row.pk, {}, task_values(row), row.tenant_id)

    def detail(self, **values: Any) -> None:
        """Record arguments of the operation that no column of its object contains."""
        self._after |= values

    def tasks_changed(self, ids: Sequence[uuid.UUID]) -> None:
        """Record locked tasks before a write; one statement for up to 5,000 of them."""
        new = [task_id for task_id in ids if task_id not in self._tasks]
        if not new:
            return
        if len(new) == 1 and not self._tasks:
            # As many statements as for many tasks.
            self._first = tables.tasks().get(pk=new[0])
            self._tasks[new[0]] = (self._first.tenant_id, self._first.status)
            return
        for first in range(0, len(new), _MANY):
            rows = tables.tasks().filter(pk__in=new[first : first + _MANY]).order_by("pk")
            for task_id, tenant_id, status in rows.values_list("pk", "tenant_id", "status"):
                self._tasks[task_id] = (tenant_id, status)

    def entries(self) -> list[models.AuditEntry]:
        """Return the entry; one for each tenant if a set contains tasks of several."""
        if self._rows:
            return self._of_rows()
        return self._of_subject() if self._subject is not None else self._of_tasks()

    def write(self) -> None:
        """Insert the entries."""
        entries = self.entries()
        if self._collecting is not None:
            self._collecting.extend(entries)
        elif entries:
            insert_entries(entries)

    def _of_subject(self) -> list[models.AuditEntry]:
        assert self._subject is not None  # noqa: S101 - narrows the type
        object_type, object_id, tenant_id = self._subject
        before, after = dict(self._before), dict(self._after)
        if object_type == "task" and [str(task_id) for task_id in self._tasks] == [object_id]:
            return self._of_one_task()
        if self._tasks:
            old, new = self._statuses(self._tasks)
            before["tasks"], after["tasks"] = old, new
        if not (before or after):
            return []
        owners = {owner for owner, _status in self._tasks.values()}
        if tenant_id is None and len(owners) == 1:
            (tenant_id,) = owners
        return [self._entry(tenant_id, object_type, object_id, before, after, self._tasks)]

    def _of_rows(self) -> list[models.AuditEntry]:
        subjects = []
        for tenant_id in dict.fromkeys(tenant for _key, tenant in self._rows):
            keys = [key for key, tenant in self._rows if tenant == tenant_id]
            alone, several = (str(keys[0]), ()) if len(keys) == 1 else ("", keys)
            changes = self._before, self._after
            subjects.append(self._entry(tenant_id, self._rows_type, alone, *changes, several))
        return subjects

    def _of_tasks(self) -> list[models.AuditEntry]:
        if len(self._tasks) == 1:
            return self._of_one_task()
        subjects = []
        for tenant_id in sorted({owner for owner, _status in self._tasks.values()}):
            of_tenant = {
                task_id: value for task_id, value in self._tasks.items() if value[0] == tenant_id
            }
            old, new = self._statuses(of_tenant)
            changes = {"status": old}, {"status": new, **self._after}
            subjects.append(self._entry(tenant_id, "task", "", *changes, of_tenant))
        return subjects

    def _of_one_task(self) -> list[models.AuditEntry]:
        ((task_id, (tenant_id, _status)),) = self._tasks.items()
        row = tables.tasks().filter(pk=task_id).first()
        if row is None:
            return []
        before = {} if self._first is None else task_values(self._first)
        old, new = changed_fields(before, task_values(row))
        before, after = {**self._before, **old}, {**self._after, **new}
        return [self._entry(tenant_id, "task", str(task_id), before, after)]

    def _statuses(
        self, rows: Mapping[uuid.UUID, tuple[int, str]]
    ) -> tuple[dict[str, int], dict[str, int]]:
        """Return how many of these tasks had each status before, and how many have it now."""
        after, keys = Counter[str](), list(rows)
        for first in range(0, len(keys), _MANY):
            page = tables.tasks().filter(pk__in=keys[first : first + _MANY])
            after.update(Counter(page.order_by().values_list("status", flat=True)))
        return dict(Counter(status for _owner, status in rows.values())), dict(after)

    def _entry(
        self,
        tenant_id: int | None,
        object_type: str,
        object_id: str,
        before: Mapping[str, Any],
        after: Mapping[str, Any],
        keys: Collection[Any] = (),
    ) -> models.AuditEntry:
        """Return an entry about one object, or with ``keys`` about a set."""
        actor, names = self.actor, conf.settings().SECRET_NAMES
        return models.AuditEntry(
            tenant_id=actor.tenant_id if tenant_id is None else tenant_id,
            source=actor.source,
            actor=actor.by[:200],
            operation=self.operation,
            object_type=object_type,
            object_id=object_id,
            count=len(keys) or 1,
            object_ids=[str(key) for key in islice(keys, IDS_MAX)],
            before=stored_fields(before, names),
            after=stored_fields(after, names),
            reason=actor.reason[:500],
            address=actor.address,
        )


_recorder: ContextVar[AuditRecorder | None] = ContextVar("durable_tasks_audit", default=None)


def current_recorder() -> AuditRecorder | None:
    """Return the recorder of the present operation; None for a write that is not audited."""
    return _recorder.get()


@contextmanager
def recorded(operation: str, *, savepoint: bool = True) -> Iterator[AuditRecorder]:
    """Run the block in a transaction, or a savepoint, that ends with the insert of its entry.

    Inside another one it adds to that one's entry. If the block raises, nothing is written. A
    caller whose own transaction does not survive an error passes ``savepoint=False``, which saves
    two statements.
    """
    outer = _recorder.get()
    if outer is not None:
        with tables.atomic():
            yield outer
        return
    recorder = AuditRecorder(operation, savepoint=savepoint)
    token = _recorder.set(recorder)
    try:
        with tables.atomic(savepoint=savepoint):
            with observing(recorder.tasks_changed):
                yield recorder
            recorder.write()
    finally:
        _recorder.reset(token)


def record_start(operation: str, **details: Any) -> None:
    """Write the entry of an operation on the whole installation, before its first transaction."""
    with recorded(operation) as entry:
        entry.subject("installation", "")
        entry.detail(started=True, **details)


# Reads and deletes audit entries.


SETS_READ = 1_000
"""How many of the newest entries of sets are searched for an object: of the tenant for a task, and
of each type of objects for a search.
"""
SHOWN = 50
# How many objects of one name a search finds: one of each tenant.
SAME_NAME = 1_000
NAMED: dict[str, tuple[type[Model], str]] = {
    "schedule": (models.RecurringTask, "name"),
    "calendar": (models.Calendar, "name"),
    "tenant": (models.Tenant, "slug"),
}
"""The objects that people know by a name and entries by an id, with the column of the name.
Optional apps add theirs.
"""
_SETS_OF = ("task", "dead letter", "API key")
"""The types of objects of which an operation changes a set with one entry."""


def about(term: str, tenant_id: int | None = None) -> Q:
    """Return the condition for entries about the objects with this id or name, of this tenant if
    one is given: otherwise at most SAME_NAME objects of a type are searched.
    """
    # An index reads one type of objects at a time, so the types are named.
    condition = Q(object_type__in=OBJECT_TYPES, object_id=term)
    for object_type, (model, column) in NAMED.items():
        rows = model._default_manager.using(tables.database()).filter(**{column: term})
        if model is not models.Tenant:  # the indexes of names begin with the tenant
            tenants = models.Tenant.objects.using(rows.db).values("pk")
            rows = rows.filter(tenant__in=tenants if tenant_id is None else [tenant_id])
        ids = [str(pk) for pk in rows.order_by("pk").values_list("pk", flat=True)[:SAME_NAME]]
        if ids:
            condition |= Q(object_type=object_type, object_id__in=ids)
    return condition


def in_sets(key: str) -> Q:
    """Return the condition for entries of sets that contain the object with this id, among the
    newest SETS_READ of each type.
    """
    ids = list[int]()
    for object_type in _SETS_OF:
        # Ids are texts in the JSON, so that 17 is not found in 117.
        sets = _with_id(audit_entries().of_object(object_type, ""), f'"{key}"')
        ids += sets.values_list("pk", flat=True)
    return Q(pk__in=ids)


def _with_id(sets: AuditEntryQuerySet, text: str) -> AuditEntryQuerySet:
    newest = list(sets.order_by("-pk").values_list("pk", flat=True)[:SETS_READ])
    queryset = audit_entries().filter(pk__in=newest)
    return queryset.annotate(ids_as_text=Cast("object_ids", TextField())).filter(
        ids_as_text__contains=text
    )


def of_task(task: models.Task, limit: int = SHOWN) -> list[models.AuditEntry]:
    """Return the newest entries about a task, its dead letters, its workflow run, or a set with it.

    A set is found among the tenant's newest SETS_READ ones, by the ids that its entry contains.
    """
    letters = models.DeadLetter.objects.using(tables.database()).filter(task_id=task.pk)
    about = Q(object_type="task", object_id=str(task.pk))
    ids = [str(key) for key in letters.values_list("pk", flat=True)]
    if ids:
        about |= Q(object_type="dead letter", object_id__in=ids)
    if task.workflow_id is not None:
        about |= Q(object_type="workflow run", object_id=str(task.workflow_id))
    entries = list(audit_entries().filter(about).order_by("-pk")[:limit])
    sets = audit_entries().of_object("task", "").for_tenant(task.tenant_id)
    entries += _with_id(sets, str(task.pk)).order_by("-pk")[:limit]
    return sorted(entries, key=lambda entry: -entry.pk)[:limit]


def prune_audit(now: datetime, limit: int) -> int:
    """Delete entries after their retention, at most ``limit``; return how many.

    Only the oldest ``limit`` entries are read, so that no index on ``at`` is needed.
    """
    cutoff = conf.kept_from("AUDIT", now)
    oldest = audit_entries().order_by("pk").values_list("pk", "at")[:limit]
    ids = [pk for pk, at in oldest if at < cutoff]
    if ids:
        audit_entries().filter(pk__in=ids).delete()
    return len(ids)
