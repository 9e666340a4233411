"""Async functions that are durable tasks."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, NoReturn

from asgiref.sync import sync_to_async
from celery import current_task
from django.contrib.auth.models import Group
from django.db import connections

from django_durable_tasks import durable_task
from django_durable_tasks.celery.task import DurableTask
from django_durable_tasks.exceptions import InvalidOption
from tests.project.bodies import FAST
from tests.waiting import until

cancelled: list[str] = []
"""The messages with which functions were cancelled in this process."""
meetings: dict[str, list[str]] = defaultdict(list)
"""The tasks that have come to a meeting in this process."""


@durable_task(**FAST)
async def add(left: int, right: int) -> int:
    """Return the sum."""
    return left + right


@durable_task(bind=True, **FAST)
async def add_in_a_step(self: Any, left: int, right: int) -> list[Any]:
    """Return the sum, which a step adds, and why a step in the event loop is refused."""
    try:
        self.durable.step("in the loop", sum, [left, right])
    except InvalidOption as refused:
        return [await sync_to_async(self.durable.step)("add", sum, [left, right]), str(refused)]
    return []


@durable_task(**FAST)
async def total(numbers: list[int]) -> int:
    """Return the sum of a list."""
    return sum(numbers)


def _shown(task: Any) -> list[Any]:
    found: Any = current_task
    return [str(task.request.id), task.durable.attempt, found.name, str(found.request.id)]


def _shown_anywhere(task: Any) -> list[Any]:
    return [str(task.request.id), task.durable.attempt]


async def _shown_later(task: Any) -> list[Any]:
    await asyncio.wait_for(asyncio.shield(_passed()), None)
    return _shown(task)


async def _passed() -> None: ...


@durable_task(bind=True, **FAST)
async def show(self: Any) -> dict[str, Any]:
    """Return what the function, an asyncio task of it and a synchronous function see."""
    [child] = await asyncio.gather(_shown_later(self))
    return {
        "function": _shown(self),
        "child": child,
        "sync": await sync_to_async(_shown)(self),
        "other thread": await sync_to_async(_shown_anywhere, thread_sensitive=False)(self),
    }


@durable_task(bind=True, **FAST)
async def meet(self: Any, place: str, number: int) -> list[Any]:
    """Wait until ``number`` tasks are here at once; return what this one sees then."""
    meetings[place].append(str(self.request.id))
    while len(meetings[place]) < number:
        await asyncio.get_running_loop().run_in_executor(None, time.monotonic)
    return _shown(self)


async def _forever() -> NoReturn:
    await asyncio.Event().wait()
    raise AssertionError


def _note(folder: str, name: str, text: str = "") -> None:
    if folder:
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{name}-{os.getpid()}").write_text(text)


async def _hold(folder: str = "") -> None:
    _note(folder, "started")
    try:
        await _forever()
    except asyncio.CancelledError as error:
        cancelled.append(str(error))
        _note(folder, "cancelled", str(error))
        raise


@durable_task(max_attempts=1)
async def hold(folder: str = "") -> None:
    """Wait until it is cancelled."""
    await _hold(folder)


@durable_task(**FAST)
async def hold_until_released(folder: str) -> int:
    """Wait for the file `released` in the folder, without blocking the event loop; return the
    process.
    """
    _note(folder, "started")
    released = (Path(folder) / "released").exists
    await asyncio.to_thread(until, released, within=300)
    return os.getpid()


async def pause(seconds: float) -> None:
    """Wait on the event loop."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    loop.call_later(seconds, done.set_result, None)
    await done


@durable_task
async def work(number: int, seconds: float, folder: str) -> int:
    """Wait for `seconds`, with a file as `bodies.work`, and with a query."""
    mark = Path(folder) / str(os.getpid())
    await asyncio.to_thread(mark.touch)
    await pause(seconds)
    await Group.objects.acount()
    await asyncio.to_thread(mark.unlink, missing_ok=True)
    return number


@durable_task(max_attempts=1)
async def block(folder: str) -> int:
    """Wait for the file `released` in the folder, and block the event loop meanwhile."""
    _note(folder, "started")
    until((Path(folder) / "released").exists, within=300)
    return os.getpid()


@durable_task(max_attempts=1, soft_timeout=0.2, timeout=60)
async def over_soft_limit() -> None:
    """Wait longer than the soft limit."""
    await _hold()


@durable_task(max_attempts=1, timeout=0.2)
async def over_hard_limit() -> None:
    """Wait longer than the hard limit."""
    await _hold()


@durable_task(max_attempts=1, soft_timeout=0.1, timeout=0.3)
async def slow_to_end() -> None:
    """Wait in the cleanup until the hard limit cancels that, too."""
    try:
        await _hold()
    finally:
        await _hold()


@durable_task(max_attempts=1, soft_timeout=0.1)
async def keep_what_is_done() -> str:
    """Return a value when it is cancelled."""
    try:
        await _forever()
    except asyncio.CancelledError:
        return "half"


@durable_task(max_attempts=1)
async def cancel_itself() -> None:
    """Cancel the asyncio task that runs it."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await _forever()


@durable_task(max_attempts=1)
async def leave() -> None:
    """Call sys.exit()."""
    sys.exit(3)


@durable_task(max_attempts=1)
async def leave_beside() -> int:
    """Call sys.exit() in another asyncio task, and continue."""

    async def beside() -> None:
        sys.exit(3)

    await asyncio.wait({asyncio.create_task(beside())})
    return 1


@durable_task(max_attempts=2, **FAST)
async def fail(message: str) -> None:
    """Raise."""
    raise ValueError(message)


@durable_task(bind=True, max_attempts=5, **FAST)
async def celery_retry(self: Any, times: int) -> int:
    """Use Celery's own retry `times` times, then return the number of the attempt."""
    if self.request.retries < times:
        raise self.retry(countdown=0.01, exc=KeyError("not yet"))
    attempt: int = self.durable.attempt
    return attempt


@durable_task(
    bind=True, autoretry_for=(Exception,), retry_backoff=False, retry_kwargs={"countdown": 0.01}
)
async def autoretry(self: Any, times: int) -> int:
    """Fail `times` times with an error that Celery retries."""
    if self.durable.attempt <= times:
        raise LookupError("not yet")
    attempt: int = self.durable.attempt
    return attempt


@durable_task(**FAST)
async def create_group(name: str) -> int:
    """Create a group by Django's async methods; return the number of groups of this name."""
    await Group.objects.acreate(name=name)
    return await Group.objects.filter(name=name).acount()


@durable_task(atomic=True, max_attempts=1)
async def create_and_fail(name: str, error: str) -> str:
    """Create a group in the transaction of the task."""
    await Group.objects.acreate(name=name)
    if error:
        raise ValueError(error)
    return name


@durable_task(**FAST)
async def threads_of_queries() -> bool:
    """Return whether all queries ran in one thread, which is not that of the event loop."""
    threads = {await sync_to_async(threading.get_ident)() for _ in range(3)}
    return len(threads) == 1 and threading.get_ident() not in threads


def _connection() -> Any:
    return connections["default"]


@durable_task(**FAST)
async def wait_without_connection() -> bool:
    """Wait until the connection of a query is closed; return whether it was open after the query."""
    await Group.objects.acount()
    connection = await sync_to_async(_connection)()
    was_open = await sync_to_async(lambda: connection.connection is not None)()
    await asyncio.to_thread(until, lambda: connection.connection is None, within=20)
    return was_open


class Wrapped(DurableTask):
    """Has an async __call__."""

    abstract = True

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        value = await super().__call__(*args, **kwargs)
        return [self.name.rpartition(".")[2], value]


@durable_task(base=Wrapped, bind=True, **FAST)
async def wrapped(self: Any, number: int) -> list[Any]:
    """Return the number and that of the attempt."""
    return [number, self.durable.attempt]


@durable_task(bind=True, **FAST)
async def call_others(self: Any) -> list[Any]:
    """Call durable tasks as plain functions."""
    return [await add(1, 2), await add(3, 4), self.request.called_directly]


@durable_task(**FAST)
async def call_by_delay(name: str) -> None:
    """Create a task."""
    await create_group.adelay(name)


@durable_task(batch=10, **FAST)
async def in_batch(number: int) -> int:
    """Return the number."""
    await _passed()
    return number
