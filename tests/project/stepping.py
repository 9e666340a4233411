"""Durable tasks with steps and loops, used by tests/processes and the kill trials."""

from __future__ import annotations

import asyncio
import threading
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group, User

from django_durable_tasks import durable_task
from tests.project.batched import write

OPTIONS: dict[str, Any] = {
    "bind": True,
    "backoff": "FIXED",
    "backoff_base": 0.05,
    "jitter": False,
    "max_crashes": 1_000,
}
# Seconds for an item until the folder contains the file ``hurry``.
PAUSE = 0.05


def _work_on(folder: Path, label: str, item: User) -> None:
    """Create a row for an item, which takes a while."""
    Group.objects.create(name=f"{label} {item.pk} {uuid.uuid4()}")
    if not (folder / "hurry").exists():
        threading.Event().wait(PAUSE)


@durable_task(**OPTIONS)
def import_items(self: Any, label: str, batch: int, atomic: bool, folder: str) -> str:
    """Take a step, create a group for each user, and take another step. Each call of a step whose
    end is recorded is noted as ``repeated``.
    """

    def step(name: str) -> str:
        if name in (self.durable.task.position or {}):
            write(f"{folder}/repeated", f"{label} {name}")
        Group.objects.create(name=f"{label} {name}")  # the names are unique
        return name

    self.durable.step("before", step, "before", atomic=True)
    users = User.objects.all()
    for user in self.durable.iterate(users, step="items", batch=batch, atomic=atomic):
        _work_on(Path(folder), f"{label} item", user)
    return str(self.durable.step("after", step, "after", atomic=True))


@durable_task(**OPTIONS)
async def import_items_in_a_coroutine(self: Any, atomic: bool, folder: str) -> str:
    """Create a group for each user."""
    async for user in self.durable.iterate(
        User.objects.all(), step="items", batch=10, atomic=atomic
    ):
        await Group.objects.acreate(name=f"item {user.pk} {uuid.uuid4()}")
        if not (Path(folder) / "hurry").exists():
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.Event().wait(), PAUSE)
    after: str = await sync_to_async(self.durable.step)("after", lambda: "after")
    return after
