"""Tasks for the tests of the testing kit."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from django.contrib.auth.models import Group
from django.db import IntegrityError, connection, transaction

from django_durable_tasks import Schedule, durable_task

fails_now = {"no": True}


class Broken(Exception):
    """The error of these tasks."""


@durable_task
def create_group(name: str) -> str:
    Group.objects.create(name=name)
    return name


@durable_task
def create_group_once(name: str) -> None:
    Group.objects.get_or_create(name=name)


@durable_task(atomic=True)
def create_atomically(name: str) -> None:
    Group.objects.create(name=name)


@durable_task(bind=True, max_attempts=5)
def third_time(self: Any, name: str) -> None:
    if self.durable.attempt < 3:
        raise Broken(f"attempt {self.durable.attempt}")


@durable_task(max_attempts=2)
def fails() -> None:
    if fails_now["no"]:
        raise Broken("no")


@durable_task(max_attempts=1)
def create_twice(name: str) -> None:
    Group.objects.create(name=name)


@durable_task(max_attempts=1)
def exits() -> None:
    raise SystemExit(3)


@durable_task
def leaves_a_block_open() -> None:
    transaction.atomic().__enter__()
    Group.objects.create(name="open")


@durable_task(max_attempts=1)
def reads_a_missing_table() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM nowhere")


@durable_task
def robust_callback_fails() -> None:
    transaction.on_commit(lambda: 1 / 0, robust=True)


@durable_task(unique="once", unique_for=3600)
def once() -> None: ...


@durable_task(max_attempts=1)
def catches() -> None:
    Group.objects.create(name="x")
    with suppress(IntegrityError):
        Group.objects.create(name="x")


@durable_task
def create_and_fail(name: str) -> None:
    Group.objects.create(name=name)
    raise Broken(name)


@durable_task
def on_commit(name: str) -> None:
    transaction.on_commit(lambda: Group.objects.create(name=f"committed {name}"))


@durable_task(batch=100)
def in_batch(number: int) -> int:
    return number


@durable_task
def again() -> Any:
    return Schedule(again)


@durable_task(bind=True)
def shows(self: Any, value: Any) -> dict[str, Any]:
    return {
        "value": value,
        "attempt": self.durable.attempt,
        "retries": self.request.retries,
        "tenant": (self.request.headers or {}).get("x-tenant"),
    }


@durable_task(bind=True)
def create_by_steps(self: Any, names: list[str], atomic: bool = False) -> str:
    """Create a group by a step, and one for each name in a loop."""

    def create(name: str) -> str:
        return Group.objects.create(name=name).name

    first: str = self.durable.step("first", create, "first")
    for name in self.durable.iterate(names, step="names", batch=2, atomic=atomic):
        create(name)
    return first
