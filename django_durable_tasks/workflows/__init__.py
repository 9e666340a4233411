"""``Workflow``: dependent durable tasks, built in Python and written as rows in one transaction."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Self

from asgiref.sync import sync_to_async

from django_durable_tasks.celery.canvas import translate
from django_durable_tasks.models import DEFAULT_TENANT_ID, WorkflowRun
from django_durable_tasks.option_values import checked_count, checked_key, instant
from django_durable_tasks.workflows import runs as workflow_start
from django_durable_tasks.workflows.builder import Builder
from django_durable_tasks.workflows.runs import Progress, StartOptions


class Workflow(Builder):
    """A workflow: ``add`` tasks, ``start`` it.

    ``deadline`` (seconds after its start, or an instant): tasks that have not ended by then are
    cancelled, and the run is FAILED. ``on_success``, ``on_failure``, ``on_complete``: durable tasks
    that are created once each with the id of the run.
    """

    @classmethod
    def from_canvas(cls, canvas: Any, *, name: str = "canvas", **options: Any) -> Self:
        """Return the workflow with the behaviour of this Celery canvas.

        ``canvas``: chains, groups, chords, maps, starmaps and chunks of durable tasks, in any
        nesting; ``options`` are those of Workflow. Each task receives the arguments that Celery
        would pass. Raises UntranslatableCanvas for parts without an equivalent, and InvalidOption.
        """
        workflow = cls(name, **options)
        translate(canvas, workflow)
        return workflow

    def start(
        self,
        *,
        run_at: datetime | None = None,
        key: str | None = None,
        tenant: Any = None,
        priority: int | None = None,
        progress: Progress | None = None,
    ) -> WorkflowRun:
        """Create all rows in the caller's transaction and return the run.

        Outside of a transaction more than 10,000 tasks are written in batches; ``progress(written,
        rows)`` is called after each, and no task runs before the last. Another open run with the
        same ``key`` is returned instead, also while it is being written (STARTING). A start without
        progress for a minute is abandoned and replaced.

        Raises DependencyCycle with its path, InvalidReference, InvalidArguments, UnknownTask,
        WorkflowTooLarge; then nothing is written. Raises TransitionRefused if another process
        abandoned the start meanwhile.
        """
        launch = StartOptions(
            run_at=None if run_at is None else instant("run_at", run_at),
            key=None if key is None else checked_key("key", key),
            tenant_id=getattr(tenant, "pk", tenant) or DEFAULT_TENANT_ID,
            priority=None if priority is None else checked_count("priority", priority, 0, 9),
        )
        return workflow_start.start(workflow_start.planned(self), launch, progress)

    async def astart(self, **options: Any) -> WorkflowRun:
        """Create all rows as ``start`` does, without blocking the event loop."""
        return await sync_to_async(self.start)(**options)
