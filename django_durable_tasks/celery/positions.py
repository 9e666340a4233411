"""``self.durable.step()`` and ``iterate()``: how far the attempts of a task have come, so that the
next one continues there.
"""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set, Sized
from contextlib import nullcontext
from itertools import islice
from typing import Any, NoReturn, Protocol

from asgiref.sync import sync_to_async
from django.core.exceptions import FieldDoesNotExist
from django.db import InterfaceError, OperationalError, router, transaction
from django.db.models import Field, Q, QuerySet
from django.db.models.manager import BaseManager
from django.db.models.query import ModelIterable

from django_durable_tasks import conf, registry
from django_durable_tasks.exceptions import (
    InvalidOption,
    IsolationTooStrict,
    ResultTooLarge,
    RunInterrupted,
    RunLost,
)
from django_durable_tasks.limits.scopes import Rate, rate_of
from django_durable_tasks.masking import shortened
from django_durable_tasks.store import connections
from django_durable_tasks.store.connections import dedicated_connection
from django_durable_tasks.store.errors import SERIALIZATION_FAILURE, code_of, reason_of
from django_durable_tasks.store.tables import BoundedCount
from django_durable_tasks.task_values import Run
from django_durable_tasks.tasks import attempts
from django_durable_tasks.tasks.arguments import encode_result

# The position is a JSON object by the names of steps, in the row of the task. The entry of a
# called function has its ``result``. That of a loop has the number of items that are ``done``, the
# key of the last one as ``after``, and ``ended``.
#
# It is read by the first step of an attempt, and written by each step and batch with the guard of
# an ending: status RUNNING, epoch and run id. Tasks without steps execute no statement more.


logger = logging.getLogger("django_durable_tasks.runs")
_NAME_MAX = 200
_BATCH_MAX = 10_000
# Bytes of a position. Each batch writes all of it.
_BYTES_MAX = 1_048_576
# Seconds between two records inside of a batch, so that a kill repeats little of a slow one.
_RECORD_EVERY = 1.0
# Rows that are counted for the progress. More would take longer than a batch.
_COUNTED_MAX = 100_000
# Seconds between two looks for a shutdown while a throttle waits.
_LOOK_EVERY = 0.2
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
_END = object()
_idle = threading.Event()
"""Never set: waiting for it is a pause."""


class RunWithSteps(Protocol):
    """What steps need of a run in progress."""

    run: Run
    eager: bool
    result_limits: tuple[int, int]
    blocks_before: Mapping[str, int]
    progress: str | None
    reports_progress: bool
    written_progress: str | None

    @property
    def is_interrupted(self) -> bool:
        """Whether the worker is shutting down."""

    def check(self, *, is_guarded: bool = False) -> None:
        """Raise RunCancelled, RunLost or RunOutOfTime if the function should stop."""


class Position:
    """The steps of one task that its attempts have finished, for one attempt."""

    def __init__(self, live: RunWithSteps) -> None:
        self._live = live
        self._steps: dict[str, dict[str, Any]] | None = None
        self._names = set[str]()
        """The steps that this attempt has begun."""
        self._loop: Iteration | None = None
        """The loop that was begun last and has not ended."""
        self._has_advanced = False
        """Whether this attempt has recorded anything. Only then it may be interrupted, so that each
        attempt makes progress.
        """
        self._interruption: RunInterrupted | None = None

    # The two forms.

    def call(
        self,
        name: str,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        atomic: bool,
    ) -> Any:
        """Return the stored value of this step, or call the function and store its value."""
        entry = self._begin(name)
        if entry is not None:
            if "result" not in entry:
                raise self._refused(name, "this step was a loop when an earlier attempt ran it.")
            return copy.deepcopy(entry["result"])
        try:
            self.stop(self.stop_reason(is_guarded=atomic))
            alias = conf.settings().DATABASE
            with transaction.atomic(using=alias) if atomic else nullcontext():
                value = function(*args, **kwargs)
                max_bytes, max_depth = self._live.result_limits
                of_step = f"{self._live.run.name}, step {name!r}"
                text = encode_result(of_step, value, max_bytes=max_bytes, max_depth=max_depth)
                result = None if text is None else json.loads(text)
                steps = self._with(name, {"result": result})
                progress = self._progress_text(len(self._finished(steps)), None, name)
                self._write(steps, progress, in_transaction=atomic)
        except BaseException:
            self._names.discard(name)
            raise
        self._confirm(steps, progress)
        return copy.deepcopy(result)

    def block(self, name: str, *, atomic: bool) -> Iteration:
        """Return a loop over one item, which is nothing."""
        return self._loop_over(_Items((None,)), name, 1, None, atomic=atomic, total=None)

    def iteration(
        self,
        items: Iterable[Any],
        name: str,
        *,
        batch: object,
        throttle: str | None,
        atomic: bool,
        total: int | None,
    ) -> Iteration:
        """Return a loop over the items that are left."""
        if type(batch) is not int or not 1 <= batch <= _BATCH_MAX:
            raise InvalidOption.of("batch", batch, f"give a whole number from 1 to {_BATCH_MAX:,}.")
        rate = None if throttle is None else rate_of("throttle", throttle)
        if isinstance(items, BaseManager):
            items = items.all()
        if isinstance(items, QuerySet):
            source: _Source = _Rows(items, name, atomic=atomic)
        elif isinstance(items, Set):
            raise self._refused(
                name, "a set has no order that is the same in each attempt: sort it."
            )
        else:
            source = _Items(items)
        return self._loop_over(source, name, batch, rate, atomic=atomic, total=total)

    def _loop_over(
        self,
        source: _Source,
        name: str,
        batch: int,
        rate: Rate | None,
        *,
        atomic: bool,
        total: int | None,
    ) -> Iteration:
        loop = Iteration(self, name, source, batch=batch, rate=rate, atomic=atomic, total=total)
        if not _is_in_event_loop():  # there the first item is awaited
            loop.begin()
        return loop

    def begin(self, loop: Iteration) -> dict[str, Any]:
        """Begin a loop, and return its entry, which is empty if it has none."""
        entry = self._begin(loop.name) or {}
        if "result" in entry:
            raise self._refused(
                loop.name, "this step was a function when an earlier attempt ran it."
            )
        if not entry.get("ended"):
            self.stop(self.stop_reason())
        self._loop = loop
        return entry

    # What the gate calls when the function has ended.

    def finish(self) -> None:
        """Check what the function left when it returned. Raises the RunInterrupted that it caught,
        and InvalidOption if it left an atomic batch open.
        """
        if self._interruption is not None:
            raise self._interruption
        self._leave_loop(is_last=True)

    def abandon(self, error: BaseException) -> None:
        """Roll back the batch that the error interrupted, or record its finished items."""
        loop, self._loop = self._loop, None
        if loop is not None:
            try:
                loop.abandon(error)
            except Exception as failed:  # noqa: BLE001 - what is not recorded is repeated
                logger.info(
                    "The items that step %r of run %s has finished were not recorded: %s",
                    loop.name,
                    self._live.run.celery_id,
                    type(failed).__name__,
                    extra={"task_id": str(self._live.run.task_id)},
                )

    # What steps and loops share.

    def _begin(self, name: Any) -> dict[str, Any] | None:
        """Return the entry of a step that this attempt begins, None if it has none."""
        if not isinstance(name, str) or not name or len(name) > _NAME_MAX:
            raise InvalidOption.of("step", name, f"give a name of 1 to {_NAME_MAX} characters.")
        if _is_in_event_loop():
            raise self._refused(
                name,
                "it would block the event loop with its queries: write `async for` instead of"
                " `for`, and `await sync_to_async(self.durable.step)(...)`.",
            )
        if name in self._names:
            raise self._refused(
                name, "this attempt has begun a step of this name: give each one its own name."
            )
        if registry.get(self._live.run.name).options.atomic:
            raise self._refused(
                name,
                "the task has atomic=True, which ends in one transaction: remove it from"
                " @durable_task, and give atomic=True to the step.",
            )
        self._leave_loop()
        self.check_transactions(name)
        if self._steps is None:
            self._steps = self._read()
        self._names.add(name)
        return self._steps.get(name)

    def _leave_loop(self, *, is_last: bool = False) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            self._names.discard(loop.name)
            loop.leave(is_last=is_last)

    def end(self, loop: Iteration) -> None:
        """Note that a loop has ended by itself."""
        if self._loop is loop:
            self._loop = None

    def is_open(self, loop: Iteration) -> bool:
        """Return whether this is the loop that was begun last."""
        return self._loop is loop

    def check_transactions(self, name: str) -> None:
        """Raise InvalidOption inside of a transaction: a rollback of it would undo what the
        recorded position counts as done.
        """
        if connections.aliases_not_as(self._live.blocks_before):
            raise self._refused(
                name,
                "it is inside of transaction.atomic(), whose rollback would undo what is counted as"
                " done: leave the block, and give atomic=True to the step.",
            )

    def _refused(self, name: str, remedy: str) -> InvalidOption:
        return InvalidOption.of("step", name, remedy)

    def _finished(self, steps: Mapping[str, Mapping[str, Any]]) -> list[str]:
        return [name for name, entry in steps.items() if "result" in entry or entry.get("ended")]

    def _with(self, name: str, entry: dict[str, Any]) -> dict[str, dict[str, Any]]:
        return {**(self._steps or {}), name: entry}

    def record(
        self, name: str, entry: dict[str, Any], note: str, commit: Callable[[], None] | None
    ) -> None:
        """Record the entry of a loop. ``commit``: in the open transaction, which it commits."""
        steps = self._with(name, entry)
        progress = self._progress_text(entry["done"], entry["total"], note)
        if commit is None:
            self.check_transactions(name)
            self._write(steps, progress, in_transaction=False)
        else:
            self._write(steps, progress, in_transaction=True)
            commit()
        self._confirm(steps, progress)

    def _confirm(self, steps: dict[str, dict[str, Any]], progress: str | None) -> None:
        """Continue with what was recorded."""
        self._steps, self._has_advanced = steps, True
        if progress is not None:
            self._live.progress = progress
            self._live.written_progress = progress

    def report(self, done: int, total: int | None, note: str) -> None:
        """Let the next heartbeat write this progress."""
        text = self._progress_text(done, total, note)
        if text is not None:
            self._live.progress = text

    def _progress_text(self, done: int, total: int | None, note: str) -> str | None:
        if self._live.reports_progress:
            return None
        return json.dumps({"done": done, "total": total, "note": shortened(note, 200)})

    def stop_reason(
        self, *, has_advanced: bool = False, is_guarded: bool = True
    ) -> BaseException | None:
        """Return why the function should stop here; None if it should not.

        ``has_advanced``: whether something is done that is not recorded yet. ``is_guarded``: the
        record of a loop, or of an atomic step, finds out whether the lease is over, which therefore
        need not be estimated.
        """
        live = self._live
        if live.is_interrupted and (self._has_advanced or has_advanced):
            return RunInterrupted("The worker is shutting down; the next attempt continues.")
        try:
            live.check(is_guarded=is_guarded)
        except Exception as error:  # noqa: BLE001 - one of RunCancelled, RunLost and RunOutOfTime
            return error
        return None

    def stop(self, reason: BaseException | None) -> None:
        """Raise this reason, also when the function returns if it catches an interruption."""
        if isinstance(reason, RunInterrupted):
            self._interruption = reason
        if reason is not None:
            raise reason

    # Reads and writes of the row.

    def _read(self) -> dict[str, dict[str, Any]]:
        is_owner, position = self._repeated(lambda: attempts.read_position(self._live.run))
        if not is_owner:
            raise RunLost
        return dict(position or {})

    def _write(
        self, steps: Mapping[str, Any], progress: str | None, *, in_transaction: bool
    ) -> None:
        text = json.dumps(steps, separators=(",", ":"))
        if len(text) > _BYTES_MAX:
            raise ResultTooLarge(
                f"{self._live.run.name}: its {len(steps):,} steps are {len(text):,} bytes of JSON,"
                f" at most {_BYTES_MAX:,} are allowed. Return less from them, or iterate over items"
                " instead of a step for each."
            )
        run = self._live.run
        if in_transaction:
            is_owner = _in_transaction(
                run.name, lambda: attempts.write_position(run, text, progress)
            )
        else:
            is_owner = self._repeated(lambda: attempts.write_position(run, text, progress))
        if not is_owner:
            raise RunLost

    def _repeated(self, execute: Callable[[], Any]) -> Any:
        """Return what a statement returns, outside of the transactions of the function. Errors of
        the connection are repeated for HEARTBEAT seconds: it does the same each time.
        """
        if self._live.eager:
            return execute()
        deadline, pause = time.monotonic() + conf.settings().HEARTBEAT, 0.0
        while True:
            try:
                with dedicated_connection():
                    return execute()
            except (OperationalError, InterfaceError):
                if time.monotonic() + pause > deadline:
                    raise
            _idle.wait(pause)
            pause = min(max(_FIRST_PAUSE, 2 * pause), _LONGEST_PAUSE)


def _is_in_event_loop() -> bool:
    return asyncio._get_running_loop() is not None


def _in_transaction(name: str, execute: Callable[[], bool]) -> bool:
    try:
        return execute()
    except OperationalError as error:
        if code_of(error) != SERIALIZATION_FAILURE:
            raise
        raise IsolationTooStrict(
            f"An atomic step of {name} was refused ({reason_of(error)}): the row of its task was"
            " changed, for example by a heartbeat, after the transaction began. Use READ COMMITTED"
            " (durable_tasks.E017)."
        ) from error


class Iteration(Iterator[Any]):
    """The items of a step that are left, for one ``for`` or ``async for`` loop."""

    def __init__(
        self,
        position: Position,
        name: str,
        source: _Source,
        *,
        batch: int,
        rate: Rate | None,
        atomic: bool,
        total: int | None,
    ) -> None:
        self.name, self._position, self._source = name, position, source
        self._rate, self._atomic = rate, atomic
        # With a throttle, the pause after a batch is about a second or that of one item.
        self._size = batch if rate is None else min(batch, max(1, int(rate.per_second)))
        self._done, self._after, self._total = 0, None, total
        self._has_begun = False
        self._buffer = deque[tuple[Any, Any]]()
        self._current: tuple[Any] | None = None
        """The key of the item whose block runs."""
        self._unrecorded, self._recorded_at = 0, time.monotonic()
        self._batch_began, self._batch_items = self._recorded_at, 0
        self._has_read_all, self._is_over = False, False
        self._stops = False
        self._transaction: transaction.Atomic | None = None

    def begin(self) -> None:
        """Read where earlier attempts have stopped."""
        entry = self._position.begin(self)
        self._has_begun = True
        if entry:
            self._done, self._after = int(entry["done"]), entry.get("after")
            self._total, self._is_over = entry.get("total"), bool(entry.get("ended"))
        elif self._total is None:
            self._total = self._source.total()
        self._recorded_at = time.monotonic()
        if self._done and not self._is_over:
            self._position.report(self._done, self._total, self.name)

    def __iter__(self) -> Iteration:
        """Return this iterator, also for the rest of the items."""
        return self

    def __aiter__(self) -> Iteration:
        """Return this iterator, for a coroutine."""
        return self

    async def __anext__(self) -> Any:
        """Do what ``__next__`` does in the thread of the run, whose transaction and connection the
        coroutine uses too.
        """
        item = await sync_to_async(lambda: next(self, _END))()
        if item is _END:
            raise StopAsyncIteration
        return item

    def __next__(self) -> Any:
        """Finish the item before, and return the next one."""
        if not self._has_begun:
            self.begin()
        if not self._is_over and not self._position.is_open(self):
            raise InvalidOption.of(
                "step", self.name, "another step has begun: end this loop first."
            )
        if self._current is not None:
            self._finish_item()
        if not self._is_over and not self._buffer:
            self._read_batch()
            if not self._buffer:
                self._record(ended=True)
        if self._is_over:
            raise StopIteration
        key, item = self._buffer.popleft()
        self._current = (key,)
        return item

    def stop(self) -> None:
        """End the loop after the item whose block runs, which counts as done. The next attempt, if
        there is one, continues after it.
        """
        self._stops = True

    def __enter__(self) -> NoReturn:
        """Refuse ``with``: its block could not be skipped."""
        raise InvalidOption(
            f"with self.durable.step({self.name!r}): the block of a with statement cannot be"
            f" skipped. Write `for _ in self.durable.step({self.name!r}):` or give a function."
        )

    def __exit__(self, *_: object) -> None:
        """Never called."""

    def __bool__(self) -> NoReturn:
        """Refuse ``if``: the end of its block would not be seen."""
        raise InvalidOption(
            f"if self.durable.step({self.name!r}): the end of the block would not be seen. Write"
            f" `for _ in self.durable.step({self.name!r}):` or give a function."
        )

    def leave(self, *, is_last: bool) -> None:
        """End a loop that was left before its end, by ``break`` or an exception."""
        self._is_over = True
        # Without a transaction: its COMMIT failed.
        if self._transaction is not None or (self._atomic and self._unrecorded):
            error = InvalidOption.of(
                "step",
                self.name,
                "its loop was left inside of an atomic batch, which was rolled back: call stop() of"
                " the iterator instead of break or return, and catch exceptions in the loop.",
            )
            self._roll_back(error)
            raise error
        if self._unrecorded and not is_last:
            self._record(ended=False)

    def abandon(self, error: BaseException) -> None:
        """Roll back the open batch, or record the items that are done. None are of a batch whose
        COMMIT failed.
        """
        self._is_over = True
        if self._atomic:
            self._roll_back(error)
        elif self._unrecorded and isinstance(error, Exception):
            self._record(ended=False)

    def _finish_item(self) -> None:
        """Count the item whose block has ended, record it if that is due, and stop if asked to."""
        (key,) = self._current or (None,)
        self._current = None
        reason = self._position.stop_reason(has_advanced=True)
        if isinstance(reason, RunLost):
            raise reason
        self._done, self._after = self._done + 1, key
        self._unrecorded += 1
        self._batch_items += 1
        has_ended = self._has_read_all and not self._buffer
        is_due = not self._atomic and time.monotonic() - self._recorded_at >= _RECORD_EVERY
        if has_ended or self._unrecorded >= self._size or is_due or self._stops or reason:
            self._record(ended=has_ended)
        if self._stops:
            self._is_over = True
            self._position.end(self)
        if not has_ended:
            self._position.stop(reason)

    def _read_batch(self) -> None:
        if self._rate is not None and not self._unrecorded:
            self._wait(self._rate)
        if not self._unrecorded:
            self._batch_began, self._batch_items = time.monotonic(), 0
        if self._atomic and self._transaction is None:
            block = transaction.atomic(using=conf.settings().DATABASE)
            block.__enter__()
            self._transaction = block
        limit = self._size - self._unrecorded
        items, self._has_read_all = self._source.read(self._done, self._after, limit)
        self._buffer.extend(items)

    def _wait(self, rate: Rate) -> None:
        """Wait until the last batch has taken as long as the throttle requires."""
        until = self._batch_began + self._batch_items / rate.per_second
        while (remaining := until - time.monotonic()) > 0:
            self._position.stop(self._position.stop_reason())
            _idle.wait(min(remaining, _LOOK_EVERY))

    def _record(self, *, ended: bool) -> None:
        entry = {"done": self._done, "total": self._total, "after": self._after}
        if ended:
            entry = {"done": self._done, "total": self._total, "ended": True}
        commit = None if self._transaction is None else self._commit
        self._position.record(self.name, entry, self.name, commit)
        self._unrecorded, self._recorded_at = 0, time.monotonic()
        if ended:
            self._is_over = True
            self._position.end(self)

    def _commit(self) -> None:
        block, self._transaction = self._transaction, None
        if block is not None:
            block.__exit__(None, None, None)

    def _roll_back(self, error: BaseException) -> None:
        block, self._transaction = self._transaction, None
        if block is not None:
            block.__exit__(type(error), error, error.__traceback__)


# What loops read: rows by their keys, or items by their number.


class _Source(Protocol):
    def total(self) -> int | None:
        """Return the number of items, None if it is unknown or large."""

    def read(self, done: int, after: Any, number: int) -> tuple[list[tuple[Any, Any]], bool]:
        """Return the next items with their keys, and whether they are the last ones."""


class _Items:
    """An iterable, of which an attempt skips as many items as are done."""

    def __init__(self, items: Iterable[Any]) -> None:
        self._items = items
        self._iterator: Iterator[Any] | None = None

    def total(self) -> int | None:
        return len(self._items) if isinstance(self._items, Sized) else None

    def read(self, done: int, after: Any, number: int) -> tuple[list[tuple[Any, Any]], bool]:
        if self._iterator is None:
            is_sequence = isinstance(self._items, Sequence)
            iterator = iter(self._items[done:] if is_sequence else self._items)  # type: ignore[index]
            self._iterator = iterator if is_sequence else islice(iterator, done, None)
        # One by one: a generator may compute or request each of its items.
        items = [(None, item) for item in islice(self._iterator, 1)]
        total = self.total()
        return items, not items or (total is not None and done + 1 >= total)


class _Rows:
    """A queryset, read in the order of a unique key from the key of the last row on."""

    def __init__(self, queryset: QuerySet[Any], name: str, *, atomic: bool) -> None:
        query = queryset.query
        if query.is_sliced or query.combinator or query.distinct_fields or query.extra_order_by:
            raise InvalidOption.of(
                "step",
                name,
                "a sliced or combined queryset, and one with distinct(fields) or extra(), cannot be"
                " continued: filter it instead, and end the loop with .stop().",
            )
        if queryset._iterable_class is not ModelIterable:
            raise InvalidOption.of(
                "step", name, "values() and values_list() cannot be continued: use only()."
            )
        alias = queryset._db or router.db_for_write(queryset.model)  # type: ignore[attr-defined]
        if atomic and alias != conf.settings().DATABASE:
            raise InvalidOption.of(
                "step",
                name,
                f"{queryset.model._meta.label} is in the database {alias!r}, the tasks are in"
                f" {conf.settings().DATABASE!r}: one transaction cannot contain both. Remove"
                " atomic=True, and let the block of the loop accept a repetition.",
            )
        self._order = _order_of(queryset, name)
        names = [f"-{field.name}" if is_down else field.name for field, is_down in self._order]
        self._queryset = queryset.order_by(*names)
        self._queryset.query.standard_ordering = True

    def total(self) -> int | None:
        number = BoundedCount.of(self._queryset, _COUNTED_MAX)
        return int(number) if number.is_exact else None

    def read(self, done: int, after: Any, number: int) -> tuple[list[tuple[Any, Any]], bool]:
        rows = self._queryset if after is None else self._queryset.filter(self._beyond(after))
        items, last, count = list[tuple[Any, Any]](), after, 0
        for row in rows[:number]:
            count += 1
            key = [field.value_to_string(row) for field, _ in self._order]
            if key != last:  # a join may return a row several times
                items.append((key, row))
            last = key
        return items, count < number

    def _beyond(self, after: Sequence[str]) -> Q:
        """Return the condition of the rows behind this key."""
        values = [
            field.to_python(text) for (field, _), text in zip(self._order, after, strict=True)
        ]
        beyond, equal = Q(), Q()
        for (field, is_down), value in zip(self._order, values, strict=True):
            beyond |= equal & Q((f"{field.name}__{'lt' if is_down else 'gt'}", value))
            equal &= Q((field.name, value))
        if len(values) == 1:
            return beyond
        # So that the index of the first column bounds the range.
        field, is_down = self._order[0]
        return Q((f"{field.name}__{'lte' if is_down else 'gte'}", values[0])) & beyond


def _order_of(queryset: QuerySet[Any], name: str) -> list[tuple[Field[Any, Any], bool]]:
    """Return the columns of the queryset's own order up to a unique one, each with whether it
    descends; the primary key if it has none. Raises InvalidOption.
    """
    meta = queryset.model._meta
    order: list[tuple[Field[Any, Any], bool]] = []
    for entry in queryset.query.order_by or ("pk",):
        text = entry if isinstance(entry, str) else "?"
        column = text.removeprefix("-")
        try:
            field: Any = meta.pk if column == "pk" else meta.get_field(column)
        except FieldDoesNotExist:
            field = None
        if field is None or not getattr(field, "concrete", False) or field.null:
            raise InvalidOption.of(
                "step",
                name,
                f"order_by({entry!r}) cannot be continued: order by columns of the model that are"
                " never NULL, or remove order_by(), and the primary key is used.",
            )
        order.append((field, text.startswith("-") == queryset.query.standard_ordering))
        if field.unique:
            return order
    columns = ", ".join(repr(entry) for entry in (*queryset.query.order_by, "pk"))
    raise InvalidOption.of(
        "step", name, f"rows with equal values have no order: use order_by({columns})."
    )
