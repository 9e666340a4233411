"""Celery's operations on the id of a durable task: ``AsyncResult(id)`` and
``app.control.revoke(id)`` use its row.

Projects keep the id that ``.delay()`` returned and use it later by ``celery.result.AsyncResult``
and ``app.control``. Both know only the result backend and messages, and Celery has no hook between,
so their methods are wrapped once. An id of our own making is a UUID of version 7. Celery's are of
version 4: such a one may be a durable task's only by ``apply_async(task_id=...)``: ``state`` and
the like look for its row only when the result backend does not know the id; ``get()`` and
``revoke()`` ask the database first.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial, wraps
from typing import Any

from celery import states
from celery.app.control import Control
from celery.backends.base import DisabledBackend
from celery.result import AsyncResult
from django.core.exceptions import SynchronousOnlyOperation
from django.db import Error, connections, transaction
from kombu.utils.functional import maybe_list

from django_durable_tasks import conf
from django_durable_tasks.celery.result import DurableResult
from django_durable_tasks.engine.tasks import operator_actions
from django_durable_tasks.exceptions import WouldWaitForever
from django_durable_tasks.models import Task
from django_durable_tasks.models.task_queries import TaskQuerySet

logger = logging.getLogger("django_durable_tasks.calls")

_WRAPPED = "_django_durable_tasks"
_NOT_ASKED = (Error, SynchronousOnlyOperation, AssertionError, RuntimeError)
"""What asking raises: the last two where Django's SimpleTestCase or pytest-django forbids the
database.
"""


def known(ids: Iterable[object]) -> set[str]:
    """Return those of these ids for which a durable task has a row.

    Where none of them is of our making a database that cannot be asked is no error, and the
    caller's transaction goes on: plain tasks do not need it.
    """
    candidates = {str(value): parsed for value in ids if (parsed := _parsed(value)) is not None}
    if not candidates:
        return set()
    ours = any(parsed.version == 7 for parsed in candidates.values())
    try:
        with nullcontext() if ours else _savepoint():
            rows = set(_rows(candidates.values()).values_list("pk", flat=True))
    except _NOT_ASKED:
        if ours:
            raise
        logger.debug(
            "Treated %d ids as those of plain tasks because the database did not respond.",
            len(candidates),
            exc_info=True,
        )
        return set()
    return {text for text, parsed in candidates.items() if parsed in rows}


def _savepoint() -> AbstractContextManager[Any]:
    """Return a savepoint inside of a transaction, which a failed statement would end on PostgreSQL;
    else nothing.
    """
    alias = conf.settings().DATABASE
    block: AbstractContextManager[Any] = transaction.atomic(using=alias)
    return block if connections[alias].in_atomic_block else nullcontext()


def _parsed(value: object) -> uuid.UUID | None:
    if isinstance(value, uuid.UUID):
        return value
    try:
        return uuid.UUID(value) if isinstance(value, str) else None
    except ValueError:
        return None


def _rows(ids: Iterable[uuid.UUID]) -> TaskQuerySet:
    rows: TaskQuerySet = Task.objects.using(conf.settings().DATABASE).filter(pk__in=list(ids))
    return rows


def _is_ours(result: Any) -> bool:
    parsed = _parsed(result.id)
    return parsed is not None and parsed.version == 7


def _durable(result: Any) -> DurableResult | None:
    """Return the result of the row that has this id, or None."""
    return DurableResult(result.id, app=result.app) if known([result.id]) else None


def _task_meta(original: Callable[..., Any], self: Any) -> Any:
    if self._cache is not None:
        return original(self)
    first = _is_ours(self) or isinstance(self.backend, DisabledBackend)
    durable = _durable(self) if first else None
    if durable is None:
        meta = original(self)
        if first or meta["status"] != states.PENDING:
            return meta
        durable = _durable(self)
        if durable is None:
            return meta
    return durable._get_task_meta()


def _get(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    durable = None if self.ignored or self._cache is not None else _durable(self)
    return original(self, *args, **kwargs) if durable is None else durable.get(*args, **kwargs)


def _native_join(original: property, self: Any) -> bool:
    return False if _is_ours(self) else bool(original.fget(self))  # type: ignore[misc]


def _revoke(
    original: Callable[..., Any], self: Any, task_id: Any, *args: Any, **kwargs: Any
) -> Any:
    """Cancel durable tasks in the caller's transaction; processes are terminated once it has
    committed.

    Raises WouldWaitForever if the caller is inside a transaction and asks for the replies of the
    workers.
    """
    ids = [str(value) for value in maybe_list(task_id) or []]
    durable = known(ids)
    if not durable:
        return original(self, task_id, *args, **kwargs)
    if kwargs.get("reply") and connections[conf.settings().DATABASE].in_atomic_block:
        # A worker cancels the rows too before it replies, so it would wait for the locks of this
        # transaction.
        raise WouldWaitForever(
            f"Revoking {', '.join(sorted(durable))} with wait=True or reply=True inside a"
            " transaction: workers reply only after it has committed. Leave wait and reply out, or"
            " revoke after the transaction."
        )
    operator_actions.cancel(_rows(map(uuid.UUID, durable)), by="revoke")
    others = [value for value in ids if value not in durable]
    terminate = kwargs.get("terminate", args[1] if len(args) > 1 else False)
    if kwargs.get("reply"):
        return original(self, ids, *args, **kwargs)
    if terminate:
        send = partial(original, self, sorted(durable), *args, **kwargs)
        transaction.on_commit(send, using=conf.settings().DATABASE)
    return original(self, others, *args, **kwargs) if others else None


def _wrap(owner: type, name: str, by: Callable[..., Any]) -> None:
    original = getattr(owner, name)
    if getattr(original, _WRAPPED, False):
        return
    method = wraps(original)(lambda self, *args, **kwargs: by(original, self, *args, **kwargs))
    setattr(method, _WRAPPED, True)
    setattr(owner, name, method)


def connect() -> None:
    """Wrap the methods; called once by ``apps.ready()``."""
    _wrap(AsyncResult, "_get_task_meta", _task_meta)
    _wrap(AsyncResult, "get", _get)
    AsyncResult.wait = AsyncResult.get
    _wrap(Control, "revoke", _revoke)
    native = AsyncResult.supports_native_join
    AsyncResult.supports_native_join = property(partial(_native_join, native))
