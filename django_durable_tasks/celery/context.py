"""``self.durable``: the current run, for the task function; and runs over many items."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

from celery import current_app

from django_durable_tasks import conf, registry
from django_durable_tasks.celery.live_runs import LiveRun
from django_durable_tasks.exceptions import InvalidOption, RunCancelled, RunLost, RunOutOfTime
from django_durable_tasks.masking import shortened
from django_durable_tasks.models import Task, Tenant
from django_durable_tasks.workflows.builder import AddedTasks


class RunContext:
    """The current run."""

    def __init__(self, live: LiveRun) -> None:
        self._live = live

    @property
    def task(self) -> Task:
        """The task of this run, read from the database."""
        row: Task = Task.objects.using(conf.settings().DATABASE).get(pk=self._live.run.task_id)
        return row

    @property
    def tenant(self) -> Tenant:
        """The tenant of the task."""
        return Tenant.objects.using(conf.settings().DATABASE).get(pk=self._live.run.tenant_id)

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1. A replay continues the numbers."""
        return self._live.run.attempt

    @property
    def idempotency_key(self) -> str:
        """The key for outside systems: the same for every attempt and replay of this task."""
        return self._live.run.idempotency_key

    @property
    def fence(self) -> int:
        """A number that increases with each run of the task. Outside systems can refuse lower
        ones.
        """
        return self._live.run.epoch

    @property
    def workflow(self) -> AddedTasks:
        """The workflow of this task. What is added to it is written with the success of this run.

        Tasks that depend on this task also wait for the last added ones. Raises InvalidOption if
        the task is not part of a workflow.
        """
        live = self._live
        if live.run.workflow_id is None:
            raise InvalidOption("self.durable.workflow: this task is no part of a workflow.")
        if live.growth is None:
            live.growth = AddedTasks("growth")
        return live.growth

    @property
    def cancelled(self) -> bool:
        """Whether the function should return: the task was cancelled, its lease was lost, or its
        time is over.

        Heartbeats update the first two.
        """
        live = self._live
        return live.cancel_requested or live.lost or live.lease_may_be_over or live.out_of_time

    def check(self) -> None:
        """Raise RunCancelled, RunLost or RunOutOfTime if the function should stop. For long
        loops.
        """
        live = self._live
        if live.lost:
            raise RunLost
        if live.cancel_requested:
            raise RunCancelled
        if live.out_of_time:
            raise RunOutOfTime(f"The run is over its time limit of {live.timeout:g} s.")
        if live.lease_may_be_over:
            raise RunLost(
                "No heartbeat reached the database for almost a lease: another run may have taken"
                " over."
            )

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Set the progress of the run. The next heartbeat writes it to ``Task.progress``. Raises
        InvalidOption.
        """
        whole = None if total is None else _number("total", total)
        progress = {
            "done": _number("done", done),
            "total": whole,
            "note": shortened(str(note), 200),
        }
        self._live.progress = json.dumps(progress)


def _number(name: str, value: Any) -> int | float:
    """Return a number that every database accepts in JSON; raises InvalidOption."""
    try:
        number = value if isinstance(value, int) else float(value)
    except Exception:  # noqa: BLE001 - a value's own code may raise anything
        number = math.nan
    if not -(2**63) <= number < 2**63:
        raise InvalidOption(f"progress({name}=...): give a finite number below 2**63.")
    return number


# Runs a durable task for many items, one after the other, inside one run.


def called_for_each(name: str, items: Iterable[Any], *, spread: bool) -> list[Any]:
    """Return the results of the durable task for each item. With ``spread`` an item is a tuple of
    positional arguments.

    Raises UnknownTask and the exceptions of the task.
    """
    task = current_app.tasks[registry.get(name).options.name]
    return [task(*item) if spread else task(item) for item in items]
